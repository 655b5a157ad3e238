#include "entry.h"

#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "status.h"

#define MAGIC "FAJITENT"
#define HEADER_BYTES 64u
#define CHECKSUM_BYTES 16u

/* The lengths of the four parts, in the order in which they lie. */
enum { KEY_TEXT, FUNCTION, LOG, CUBIN, PARTS };

typedef struct view {
    const unsigned char *part[PARTS];
    size_t len[PARTS];
} view;

static uint64_t read_le(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

/* One allocation: the cubin first, where malloc's alignment is its own. */
static bool fill(fa__entry *entry, const void *function, size_t function_len, const void *log,
                 size_t log_len, const void *cubin, size_t cubin_bytes)
{
    if (cubin_bytes > SIZE_MAX / 4 || function_len > SIZE_MAX / 4 || log_len > SIZE_MAX / 4)
        return false;
    unsigned char *memory = malloc(cubin_bytes + function_len + log_len + 2);
    if (!memory)
        return false;
    entry->memory = memory;
    entry->cubin = memory;
    entry->cubin_bytes = cubin_bytes;
    entry->function = (char *)memory + cubin_bytes;
    entry->log = entry->function + function_len + 1;
    if (cubin_bytes > 0)
        memcpy(entry->cubin, cubin, cubin_bytes);
    memcpy(entry->function, function, function_len);
    entry->function[function_len] = '\0';
    memcpy(entry->log, log, log_len);
    entry->log[log_len] = '\0';
    return true;
}

fa_status fa__entry_make(fa__entry *entry, const char *function, const char *log, const void *cubin,
                         size_t cubin_bytes)
{
    *entry = (fa__entry){0};
    if (!function)
        function = "";
    if (!log)
        log = "";
    if (!fill(entry, function, strlen(function), log, strlen(log), cubin, cubin_bytes))
        return fa__fail_memory(cubin_bytes + strlen(function) + strlen(log) + 2);
    return FA_OK;
}

void fa__entry_free(fa__entry *entry)
{
    if (!entry)
        return;
    free(entry->memory);
    *entry = (fa__entry){0};
}

void fa__entry_encode(const fa__entry *entry, const char *key_text, size_t key_len, fa__buf *out)
{
    const size_t begin = out->len;
    const size_t function_len = strlen(entry->function), log_len = strlen(entry->log);
    fa__buf_bytes(out, MAGIC, 8);
    fa__buf_u32le(out, FA__ENTRY_VERSION);
    fa__buf_u32le(out, entry->registers);
    fa__buf_u32le(out, entry->spill_bytes);
    fa__buf_u32le(out, entry->smem_static_bytes);
    fa__buf_u64le(out, entry->compile_ns);
    fa__buf_u64le(out, key_len);
    fa__buf_u64le(out, function_len);
    fa__buf_u64le(out, log_len);
    fa__buf_u64le(out, entry->cubin_bytes);
    fa__buf_bytes(out, key_text, key_len);
    fa__buf_bytes(out, entry->function, function_len);
    fa__buf_bytes(out, entry->log, log_len);
    fa__buf_bytes(out, entry->cubin, entry->cubin_bytes);
    if (out->failed)
        return;
    unsigned char sum[CHECKSUM_BYTES];
    fa__digest(out->data + begin, out->len - begin, sum);
    fa__buf_bytes(out, sum, CHECKSUM_BYTES);
}

/* Magic, version and where the parts are; NULL when they lie within `len` bytes. The subtractions
 * cannot wrap: each length is compared with what is left before it is taken off. */
static const char *locate(const unsigned char *bytes, size_t len, int parts, view *found)
{
    if (len < HEADER_BYTES)
        return "it is shorter than a header";
    if (memcmp(bytes, MAGIC, 8) != 0)
        return "it is not a fajit cache entry";
    if (read_le(bytes + 8, 4) != FA__ENTRY_VERSION)
        return "it has another format version";
    size_t at = HEADER_BYTES;
    for (int i = 0; i < parts; i++) {
        const uint64_t part_len = read_le(bytes + 32 + 8 * i, 8);
        if (part_len > len - at)
            return "it is shorter than its header says";
        found->part[i] = bytes + at;
        found->len[i] = (size_t)part_len;
        at += (size_t)part_len;
    }
    if (parts == PARTS && len - at != CHECKSUM_BYTES)
        return len - at < CHECKSUM_BYTES ? "it is shorter than its header says"
                                         : "it is longer than its header says";
    return NULL;
}

const char *fa__entry_decode(const void *bytes, size_t len, const char *key_text, size_t key_len,
                             fa__entry *entry)
{
    const unsigned char *data = bytes;
    view found = {0};
    *entry = (fa__entry){0};
    const char *problem = locate(data, len, PARTS, &found);
    if (problem)
        return problem;
    unsigned char sum[CHECKSUM_BYTES];
    fa__digest(data, len - CHECKSUM_BYTES, sum);
    if (memcmp(sum, data + len - CHECKSUM_BYTES, CHECKSUM_BYTES) != 0)
        return "its checksum does not match its content";
    if (key_text && (found.len[KEY_TEXT] != key_len ||
                     (key_len > 0 && memcmp(found.part[KEY_TEXT], key_text, key_len) != 0)))
        return "it belongs to another key";
    if (memchr(found.part[FUNCTION], '\0', found.len[FUNCTION]) ||
        memchr(found.part[LOG], '\0', found.len[LOG]))
        return "a text in it holds a NUL";
    if (!fill(entry, found.part[FUNCTION], found.len[FUNCTION], found.part[LOG], found.len[LOG],
              found.part[CUBIN], found.len[CUBIN]))
        return "there is not enough memory to hold it";
    entry->registers = (uint32_t)read_le(data + 12, 4);
    entry->spill_bytes = (uint32_t)read_le(data + 16, 4);
    entry->smem_static_bytes = (uint32_t)read_le(data + 20, 4);
    entry->compile_ns = read_le(data + 24, 8);
    return NULL;
}

bool fa__entry_key_text(const void *bytes, size_t len, const char **text, size_t *text_len)
{
    view found = {0};
    if (!bytes || locate(bytes, len, KEY_TEXT + 1, &found) != NULL)
        return false;
    *text = (const char *)found.part[KEY_TEXT];
    *text_len = found.len[KEY_TEXT];
    return true;
}
