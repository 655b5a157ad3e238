/* The reader and the writer of safetensors files that the examples use. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "safetensors.h"

static char path[256], other_path[256];

static void make_paths(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/fajit-safetensors-XXXXXX", base && *base ? base : "/tmp");
    strcpy(other_path, path);
    close(mkstemp(path));
    close(mkstemp(other_path));
}

static void remove_paths(void)
{
    unlink(path);
    unlink(other_path);
}

TestSuite(safetensors, .init = make_paths, .fini = remove_paths);

/* A new file each time: to cut one short, some file systems wait for their disk. */
static void write_file(const void *bytes, size_t count)
{
    unlink(path);
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
}

/* A file of this header and `data_bytes` bytes of data; returns its size. */
static size_t make_file(char *bytes, const char *header, size_t data_bytes)
{
    const uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> 8 * i & 0xff);
    memcpy(bytes + 8, header, length);
    memset(bytes + 8 + length, 1, data_bytes);
    return 8 + length + data_bytes;
}

static const float numbers[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static const uint16_t halves[3] = {0x3c00, 0xbc00, 0x7c00};
static const safetensor three[] = {
    {.name = "w.\"2\"\\", .dtype = "F32", .shape = {2, 3}, .rank = 2, .data = numbers},
    {.name = "scalar", .dtype = "F32", .data = numbers + 2},
    {.name = "empty", .dtype = "F16", .shape = {4, 0}, .rank = 2, .data = halves},
    {.name = "b", .dtype = "F16", .shape = {3}, .rank = 1, .data = halves},
};

static void expect_tensor(const safetensors *file, const safetensor *want, size_t bytes)
{
    const safetensor *have = safetensors_find(file, want->name);
    cr_assert_not_null(have, "%s", want->name);
    cr_expect_str_eq(have->dtype, want->dtype);
    cr_expect_eq(have->rank, want->rank);
    cr_expect_arr_eq(have->shape, want->shape, want->rank * sizeof *want->shape, "%s", want->name);
    cr_expect_eq(have->bytes, bytes);
    cr_expect_arr_eq(have->data, want->data, bytes, "%s", want->name);
}

Test(safetensors, what_is_written_is_read)
{
    safetensors file;
    cr_assert(safetensors_write(path, three, 4));
    cr_assert(safetensors_read(&file, path), "%s", file.problem);
    cr_expect_eq(file.count, 4);
    expect_tensor(&file, &three[0], sizeof numbers);
    expect_tensor(&file, &three[1], 4);
    expect_tensor(&file, &three[2], 0);
    expect_tensor(&file, &three[3], sizeof halves);
    cr_expect_null(safetensors_find(&file, "w"));
    cr_expect_eq((uintptr_t)safetensors_find(&file, "scalar")->data % sizeof(float), 0);
    safetensors_close(&file);
}

Test(safetensors, no_tensors)
{
    safetensors file;
    cr_assert(safetensors_write(path, NULL, 0));
    cr_assert(safetensors_read(&file, path), "%s", file.problem);
    cr_expect_eq(file.count, 0);
    cr_expect_null(safetensors_find(&file, ""));
    safetensors_close(&file);
}

Test(safetensors, any_order_of_members_and_metadata)
{
    char bytes[400];
    safetensors file;
    write_file(bytes,
               make_file(bytes,
                         " {\"__metadata__\": {\"format\": \"pt\", \"\\u00e9\": \"\\\"}\"},\n"
                         "\"b\" : {\"data_offsets\": [1, 5], \"shape\": [2, 2], \"dtype\": \"I8\"},"
                         "\"a\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}} \t\r\n ",
                         5));
    cr_assert(safetensors_read(&file, path), "%s", file.problem);
    cr_expect_eq(file.count, 2);
    cr_expect_eq(safetensors_find(&file, "b")->shape[1], 2);
    cr_expect_null(safetensors_find(&file, "__metadata__"));
    safetensors_close(&file);
}

/* --- what is malformed --- */

#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *problem; /* part of it */
} malformed[] = {
    {"", 0, "byte 0"},
    {"[]", 0, "byte 0"},
    {"{", 0, "byte 1"},
    {"{}x", 0, "follows"},
    {"{\"a\"", 0, "punctuation"},
    {"{\"a\":}", 0, "punctuation"},
    {"{\"a", 0, "does not end"},
    {"{\"a\\", 0, "escape"},
    {"{\"a\\x\":1}", 0, "escape"},
    {"{\"a\n\":1}", 0, "control"},
    {"{a:1}", 0, "string"},
    {"{\"a\":{}}", 0, "is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "not known"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1]}}", 4, "twice"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "is missing"},
    {"{" TENSOR("a", "F32", "[1]", "[0,4]") ",}", 4, "string"},
    {"{" TENSOR("a", "F32", "[1]", "[0,4]") TENSOR("b", "F32", "[1]", "[4,8]") "}", 8, "punct"},
    {"{" TENSOR("a", "F32", "[1,]", "[0,4]") "}", 4, "whole number"},
    {"{" TENSOR("a", "F32", "[1 1]", "[0,4]") "}", 4, "punctuation"},
    {"{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "whole number"},
    {"{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "punctuation"},
    {"{" TENSOR("a", "F32", "[1e0]", "[0,4]") "}", 4, "punctuation"},
    {"{" TENSOR("a", "F32", "[01]", "[0,4]") "}", 4, "whole number"},
    {"{" TENSOR("a", "F32", "[99999999999999999999]", "[0,4]") "}", 4, "too large"},
    {"{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "not two"},
    {"{" TENSOR("a", "F32", "[1]", "[0,4,8]") "}", 8, "not two"},
    {"{" TENSOR("a", "F31", "[1]", "[0,4]") "}", 4, "F31"},
    {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions"},
    {"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 7, "0 to 8 in 7"},
    {"{" TENSOR("a", "F32", "[1]", "[8,4]") "}", 8, "8 to 4"},
    {"{" TENSOR("a", "F32", "[1]", "[18446744073709551612,18446744073709551615]") "}", 4, "in 4"},
    {"{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4, "do not fit"},
    {"{" TENSOR("a", "F16", "[1]", "[0,4]") "}", 4, "do not fit"},
    {"{" TENSOR("a", "F32", "[]", "[0,0]") "}", 0, "do not fit"},
    {"{" TENSOR("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "do not fit"},
    {"{" TENSOR("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "do not fit"},
    {"{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 5, "belong to no tensor"},
    {"{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "gap"},
    {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[2]", "[0,8]") "}", 8, "gap"},
    {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "twice"},
};

/* Expects a problem of this text. */
static void expect_refused(const char *header, const char *problem)
{
    safetensors file;
    cr_expect_not(safetensors_read(&file, path), "%s was read", header);
    cr_expect_not_null(strstr(file.problem, problem), "%s: \"%s\" and not \"%s\"", header,
                       file.problem, problem);
    safetensors_close(&file);
}

Test(safetensors, malformed_headers_are_refused)
{
    char bytes[400];
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        write_file(bytes, make_file(bytes, malformed[i].header, malformed[i].data_bytes));
        expect_refused(malformed[i].header, malformed[i].problem);
    }
}

Test(safetensors, lengths_beyond_the_file_are_refused)
{
    char bytes[400];
    const size_t count = make_file(bytes, "{}", 0);
    safetensors file;
    for (size_t i = 0; i < count; i++) {
        write_file(bytes, i);
        expect_refused("{} cut short", i < 8 ? "fewer than 8" : "a header of 2 bytes");
    }
    memset(bytes, 0xff, 8);
    write_file(bytes, count);
    expect_refused("a header of 2^64 - 1 bytes", "a header of 18446744073709551615");
    bytes[0] = (char)0xf8; /* with the 8 before it 2^64 */
    write_file(bytes, count);
    expect_refused("a header of 2^64 - 8 bytes", "a header of");
    memcpy(bytes, "\x01\xe1\xf5\x05\0\0\0", 8); /* one more than the format allows */
    write_file(bytes, count);
    cr_assert_eq(truncate(path, 200000000), 0);
    expect_refused("a header of 100000001 bytes", "a header of 100000001");
    cr_expect_not(safetensors_read(&file, "/nonexistent/file"));
    cr_expect_not_null(strstr(file.problem, "/nonexistent/file"));
    safetensors_close(&file);
    cr_expect_not(safetensors_read(&file, "/"));
    safetensors_close(&file);
}

/* Whatever stands in a file: an error, or tensors within the file. Sanitizers see what leaves it. */
Test(safetensors, damaged_files)
{
    char bytes[600], damaged[600];
    safetensors file;
    uint32_t random = 1;
    unsigned sum = 0, refused = 0;
    cr_assert(safetensors_write(other_path, three, 4));
    FILE *from = fopen(other_path, "rb");
    const size_t count = fread(bytes, 1, sizeof bytes, from);
    fclose(from);
    cr_assert(count > 100 && count < sizeof bytes);
    for (int round = 0; round < 4000; round++) {
        memcpy(damaged, bytes, count);
        for (int i = 0; i <= round % 3; i++) {
            random = random * 1664525 + 1013904223;
            damaged[(random >> 8) % count] = "0123456789,:[]{}\"\\ \xff"[(random >> 24) % 20];
        }
        write_file(damaged, round % 4 ? count : (random >> 8) % (count + 1));
        const bool read = safetensors_read(&file, path);
        cr_assert(read || file.problem[0]);
        refused += !read;
        for (size_t i = 0; read && i < file.count; i++)
            for (size_t b = 0; b < file.tensors[i].bytes; b++)
                sum += ((const unsigned char *)file.tensors[i].data)[b];
        safetensors_close(&file);
    }
    cr_expect(refused > 1000 && refused < 4000, "%u of 4000 refused, sum %u", refused, sum);
}

Test(safetensors, what_cannot_be_written)
{
    static const safetensor wrong[] = {
        {.name = "a", .dtype = "F31", .data = numbers},
        {.name = "a\n", .dtype = "F32", .data = numbers},
        {.name = "a", .dtype = "F32", .rank = 9, .data = numbers},
        {.name = "a", .dtype = "F32", .shape = {SIZE_MAX}, .rank = 1, .data = numbers},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        errno = 0;
        cr_expect_not(safetensors_write(path, &wrong[i], 1), "%zu", i);
        cr_expect_eq(errno, EINVAL, "%zu", i);
    }
    cr_expect_not(safetensors_write("/nonexistent/file", three, 4));
    cr_expect_eq(errno, ENOENT);
    cr_expect_not(safetensors_write("/dev/full", three, 4));
}

/* --- the format's own implementation --- */

/* Runs Python code on the two paths. Its exit status, 77 without the package. */
static int run_python(const char *code)
{
    char command[1500];
    snprintf(command, sizeof command,
             "python3 -c 'import sys\n"
             "try:\n import numpy as np; from safetensors.numpy import load_file, save_file\n"
             "except ImportError: sys.exit(77)\n"
             "%s' %s %s </dev/null",
             code, path, other_path);
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(safetensors, files_of_the_python_package)
{
    static const float ramp[6] = {0, 1, 2, 3, 4, 5};
    static const unsigned char octets[3] = {7, 8, 9};
    safetensors file;
    cr_assert(safetensors_write(path, three, 4));
    const int status = run_python(
        "t = load_file(sys.argv[1])\n"
        "assert set(t) == {\"w.\\\"2\\\"\\\\\", \"scalar\", \"empty\", \"b\"}, t\n"
        "assert t[\"w.\\\"2\\\"\\\\\"].tolist()[1][:1] == [0] and t[\"scalar\"] == 3.5\n"
        "assert t[\"b\"].dtype == np.float16 and t[\"empty\"].shape == (4, 0)\n"
        "save_file({\"u\": np.array([7, 8, 9], np.uint8),\n"
        "           \"\\u00e9/x\": np.arange(6, dtype=np.float32).reshape(3, 2)},\n"
        "          sys.argv[2], {\"format\": \"np\"})\n");
    if (status == 77)
        cr_skip_test("no Python with safetensors and numpy");
    cr_assert_eq(status, 0);
    cr_assert(safetensors_read(&file, other_path), "%s", file.problem);
    cr_expect_eq(file.count, 2);
    expect_tensor(
        &file,
        &(safetensor){
            .name = "\xc3\xa9/x", .dtype = "F32", .shape = {3, 2}, .rank = 2, .data = ramp},
        sizeof ramp);
    expect_tensor(
        &file, &(safetensor){.name = "u", .dtype = "U8", .shape = {3}, .rank = 1, .data = octets},
        sizeof octets);
    safetensors_close(&file);
}
