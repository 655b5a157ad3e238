// Which keys a query sees.
#ifndef FAJIT_KEY_MASK_CUH
#define FAJIT_KEY_MASK_CUH

namespace fajit {

inline constexpr int MASK_NONE = 0, MASK_CAUSAL = 1, MASK_CAUSAL_TOP_LEFT = 2;

// MASK_CAUSAL: the last query sees the last key. MASK_CAUSAL_TOP_LEFT: the first query sees the
// first key alone.
template <int KIND> struct key_mask {
    int keys;
    int diagonal; // row i sees keys up to i + diagonal

    static __device__ __forceinline__ key_mask make(int rows, int keys)
    {
        return {keys, KIND == MASK_CAUSAL ? keys - rows : 0};
    }

    __device__ __forceinline__ bool sees(int row, int key) const
    {
        return key < keys && (KIND == MASK_NONE || key <= row + diagonal);
    }

    // No row up to `last` sees this key, nor any behind it.
    __device__ __forceinline__ int end(int last) const
    {
        return KIND == MASK_NONE ? keys : max(0, min(keys - 1, last + diagonal) + 1);
    }

    // All rows from `first` on see every key before this one.
    __device__ __forceinline__ int whole(int first) const
    {
        return end(first);
    }
};

} // namespace fajit

#endif
