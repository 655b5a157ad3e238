// Integer intrinsics.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned a = inputs[row * IN], b = inputs[row * IN + 1], c = inputs[row * IN + 2];
    const int sa = static_cast<int>(a), sb = static_cast<int>(b), sc = static_cast<int>(c);
    const unsigned long long wide = static_cast<unsigned long long>(a) << 32 | b,
                             other = static_cast<unsigned long long>(b) << 32 | c;
    const long long swide = static_cast<long long>(wide), sother = static_cast<long long>(other);
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](unsigned x) { out[at++] = x; };
    auto put_wide = [&](unsigned long long x) {
        put(static_cast<unsigned>(x));
        put(static_cast<unsigned>(x >> 32));
    };
    put(__clz(sa));
    put(__ffs(sa));
    put(__popc(a));
    put(__brev(a));
    put(__clzll(swide));
    put(__ffsll(swide));
    put(__popcll(wide));
    put(__mulhi(sa, sb));
    put(__umulhi(a, b));
    put(__mul24(sa, sb));
    put(__umul24(a, b));
    put(__funnelshift_l(a, b, c));
    put(__funnelshift_r(a, b, c));
    put(__funnelshift_lc(a, b, c));
    put(__funnelshift_rc(a, b, c));
    put(__byte_perm(a, b, c));
    put(__sad(sa, sb, c));
    put(__usad(a, b, c));
    put(__hadd(sa, sb));
    put(__rhadd(sa, sb));
    put(__uhadd(a, b));
    put(__urhadd(a, b));
    put(__dp4a(sa, sb, sc));
    put(__dp4a(a, b, c));
    put(min(sa, sb));
    put(max(sa, sb));
    put(min(a, b));
    put(max(a, b));
    put_wide(__brevll(wide));
    put_wide(__umul64hi(wide, other));
    put_wide(static_cast<unsigned long long>(__mul64hi(swide, sother)));
    put_wide(static_cast<unsigned long long>(min(swide, sother)));
    put_wide(max(wide, other));
}
