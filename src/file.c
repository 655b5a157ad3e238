#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* open file description locks */
#endif
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TEMPORARY_PREFIX ".fajit-"
#define TEMPORARY_SUFFIX ".tmp"

const char *fa__file_reason(int error, char room[128])
{
    return strerror_r(error, room, 128);
}

int fa__file_absolute(const char *path, fa__buf *out)
{
    char *here = NULL;
    if (path[0] != '/') {
        here = getcwd(NULL, 0);
        if (!here)
            return errno;
        fa__buf_text(out, here);
        if (strcmp(here, "/") != 0)
            fa__buf_text(out, "/");
        free(here);
    }
    fa__buf_text(out, path);
    return out->failed ? ENOMEM : 0;
}

static void fill_info(const struct stat *from, fa__file_info *info)
{
    *info = (fa__file_info){
        .bytes = (uint64_t)from->st_size,
        .device = (uint64_t)from->st_dev,
        .inode = (uint64_t)from->st_ino,
        .links = (uint64_t)from->st_nlink,
        .modified_ns = (int64_t)from->st_mtim.tv_sec * 1000000000 + from->st_mtim.tv_nsec,
        .owner = from->st_uid,
        .permissions = from->st_mode & 07777,
        .regular = S_ISREG(from->st_mode),
        .directory = S_ISDIR(from->st_mode),
    };
}

int fa__file_stat(const char *path, bool follow, fa__file_info *info)
{
    struct stat found;
    if (fstatat(AT_FDCWD, path, &found, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    fill_info(&found, info);
    return 0;
}

int fa__file_stat_open(int fd, fa__file_info *info)
{
    struct stat found;
    if (fstat(fd, &found) != 0)
        return errno;
    fill_info(&found, info);
    return 0;
}

int fa__file_make_dir(const char *path, uint32_t permissions)
{
    return mkdir(path, (mode_t)permissions) == 0 || errno == EEXIST ? 0 : errno;
}

int fa__file_make_dirs(const char *path, uint32_t permissions)
{
    int error = fa__file_make_dir(path, permissions);
    if (error != ENOENT)
        return error;
    char *parent = strdup(path);
    if (!parent)
        return ENOMEM;
    size_t len = strlen(parent);
    while (len > 1 && parent[len - 1] == '/')
        parent[--len] = '\0';
    char *slash = strrchr(parent, '/');
    if (slash && slash != parent) {
        *slash = '\0';
        error = fa__file_make_dirs(parent, permissions);
        if (error == 0)
            error = fa__file_make_dir(path, permissions);
    }
    free(parent);
    return error;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int open_retrying(const char *path, int flags, mode_t permissions)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, permissions);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Reads until the end of the file or until `limit` bytes are there; *more tells which. */
static int read_up_to(int fd, size_t expected, uint64_t limit, unsigned char **bytes, size_t *len,
                      bool *more)
{
    size_t capacity = expected < limit ? expected + 1 : (size_t)limit + 1, have = 0;
    unsigned char *data = malloc(capacity + 1);
    *more = false;
    if (!data)
        return ENOMEM;
    for (;;) {
        if (have == capacity) {
            unsigned char *larger = realloc(data, capacity * 2 + 1);
            if (!larger) {
                free(data);
                return ENOMEM;
            }
            data = larger;
            capacity *= 2;
        }
        const ssize_t got = read(fd, data + have, capacity - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            const int error = errno;
            free(data);
            return error;
        }
        have += (size_t)got;
        if (have > limit) {
            have = (size_t)limit;
            *more = true;
            break;
        }
        if (got == 0)
            break;
    }
    data[have] = '\0';
    *bytes = data;
    *len = have;
    return 0;
}

static int read_file(const char *path, bool plain, bool prefix, uint64_t limit,
                     unsigned char **bytes, size_t *len, fa__file_info *info)
{
    *bytes = NULL;
    *len = 0;
    if (limit > SIZE_MAX / 4)
        limit = SIZE_MAX / 4;
    /* O_NONBLOCK: opening a FIFO that lies where a file is expected must not wait for a writer. */
    const int fd = open_retrying(path, O_RDONLY | (plain ? O_NOFOLLOW | O_NONBLOCK : 0), 0);
    if (fd < 0)
        return errno;
    fa__file_info own = {0};
    bool more = false;
    int error = fa__file_stat_open(fd, &own);
    if (error == 0 && plain && !own.regular)
        error = own.directory ? EISDIR : EINVAL;
    if (error == 0 && own.regular && own.bytes > limit && !prefix)
        error = EFBIG;
    if (error == 0)
        error = read_up_to(fd, own.regular ? (size_t)own.bytes : 4096, limit, bytes, len, &more);
    if (error == 0 && more && !prefix) {
        free(*bytes);
        *bytes = NULL;
        *len = 0;
        error = EFBIG;
    }
    fa__file_close(fd);
    if (info && error == 0)
        *info = own;
    return error;
}

int fa__file_read(const char *path, bool plain, uint64_t limit, unsigned char **bytes, size_t *len,
                  fa__file_info *info)
{
    return read_file(path, plain, false, limit, bytes, len, info);
}

int fa__file_read_prefix(const char *path, bool plain, uint64_t limit, unsigned char **bytes,
                         size_t *len)
{
    return read_file(path, plain, true, limit, bytes, len, NULL);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_all(int fd, const void *bytes, size_t len)
{
    const unsigned char *from = bytes;
    while (len > 0) {
        const ssize_t put = write(fd, from, len);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : EIO;
        from += put;
        len -= (size_t)put;
    }
    return 0;
}

/* Some file systems have no fsync and say so; a file that a power cut then damages is found out by
 * its checksum. */
static int sync_file(int fd)
{
    int result;
    do
        result = fsync(fd);
    while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
        return 0;
    return errno;
}

/* Unique among the threads of this host by process, thread and counter; another host or container
 * that shares the directory may use the same, which O_EXCL finds out. */
static int create_temporary(const char *dir, mode_t permissions, fa__buf *path)
{
    static atomic_uint_fast64_t counter;
    const size_t before = path->len;
    for (int attempt = 0; attempt < 1000; attempt++) {
        fa__buf_format(path, "%s/%s%ld-%ld-%llu%s", dir, TEMPORARY_PREFIX, (long)getpid(),
                       (long)syscall(SYS_gettid), (unsigned long long)atomic_fetch_add(&counter, 1),
                       TEMPORARY_SUFFIX);
        if (path->failed) {
            errno = ENOMEM;
            return -1;
        }
        const int fd =
            open_retrying(path->data, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, permissions);
        if (fd >= 0 || errno != EEXIST)
            return fd;
        path->len = before;
        path->data[before] = '\0';
    }
    return -1;
}

int fa__file_write_temporary(const char *dir, uint32_t permissions, const void *bytes, size_t len,
                             fa__buf *path)
{
    const size_t before = path->len;
    const int fd = create_temporary(dir, (mode_t)permissions, path);
    int error = fd < 0 ? errno : write_all(fd, bytes, len);
    if (fd >= 0) {
        if (error == 0)
            error = sync_file(fd);
        /* Network file systems report a full disk here. The descriptor is closed in any case. */
        if (close(fd) != 0 && errno != EINTR && error == 0)
            error = errno;
        if (error != 0)
            unlink(path->data);
    }
    if (error != 0 && path->data) {
        path->len = before;
        path->data[before] = '\0';
    }
    return error;
}

bool fa__file_is_temporary(const char *name)
{
    const size_t len = strlen(name), suffix = strlen(TEMPORARY_SUFFIX);
    return strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0 && len > suffix &&
           strcmp(name + len - suffix, TEMPORARY_SUFFIX) == 0;
}

int fa__file_rename(const char *from, const char *to)
{
    return rename(from, to) == 0 ? 0 : errno;
}

int fa__file_remove(const char *path)
{
    return unlink(path) == 0 ? 0 : errno;
}

int fa__file_remove_dir(const char *path)
{
    return rmdir(path) == 0 ? 0 : errno;
}

int fa__file_touch(const char *path)
{
    return utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

static int replace_at(const char *path, const void *bytes, size_t len)
{
    fa__buf dir = {0}, temporary = {0};
    const char *slash = strrchr(path, '/');
    if (slash)
        fa__buf_bytes(&dir, path, slash == path ? 1 : (size_t)(slash - path));
    else
        fa__buf_text(&dir, ".");
    int error = dir.failed ? ENOMEM : 0;
    if (error == 0)
        error = fa__file_write_temporary(dir.data, 0666, bytes, len, &temporary);
    if (error == 0) {
        error = fa__file_rename(temporary.data, path);
        if (error != 0)
            unlink(temporary.data);
    }
    fa__buf_free(&temporary);
    fa__buf_free(&dir);
    return error;
}

/* A rename would put a file in the place of a device or a FIFO, and of a symbolic link. */
int fa__file_replace(const char *path, const void *bytes, size_t len)
{
    fa__file_info info = {0};
    int error = fa__file_stat(path, true, &info);
    if (error == ENOENT)
        return replace_at(path, bytes, len);
    if (error != 0)
        return error;
    if (!info.regular)
        return info.directory ? EISDIR : ENOTSUP;
    char *target = realpath(path, NULL);
    if (!target)
        return errno;
    error = replace_at(target, bytes, len);
    free(target);
    return error;
}

/* ---- directories ----------------------------------------------------------------------------- */

int fa__file_list(const char *dir, fa__file_visitor visitor, void *user)
{
    DIR *stream = opendir(dir);
    if (!stream)
        return errno;
    int error = 0;
    for (;;) {
        errno = 0;
        const struct dirent *item = readdir(stream);
        if (!item) {
            if (errno != 0)
                error = errno;
            break;
        }
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0)
            continue;
        struct stat found;
        if (fstatat(dirfd(stream), item->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno != ENOENT) /* gone since: another process removed or renamed it */
                error = errno;
            continue;
        }
        fa__file_info info;
        fill_info(&found, &info);
        if (!visitor(user, item->d_name, &info))
            break;
    }
    closedir(stream);
    return error;
}

/* ---- open files and locks -------------------------------------------------------------------- */

int fa__file_open(const char *path, int *fd)
{
    *fd = open_retrying(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (*fd < 0)
        return errno;
    fa__file_info info = {0};
    int error = fa__file_stat_open(*fd, &info);
    if (error == 0 && !info.regular)
        error = EINVAL;
    if (error != 0) {
        fa__file_close(*fd);
        *fd = -1;
    }
    return error;
}

void fa__file_close(int fd)
{
    close(fd);
}

static int change_lock(int fd, short type, uint64_t offset)
{
    struct flock range = {
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = (off_t)(offset & INT64_MAX),
        .l_len = 1,
    };
    int result;
    do
        result = fcntl(fd, F_OFD_SETLK, &range);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

int fa__file_lock(int fd, uint64_t offset)
{
    return change_lock(fd, F_WRLCK, offset);
}

void fa__file_unlock(int fd, uint64_t offset)
{
    change_lock(fd, F_UNLCK, offset);
}

int fa__file_load(int fd, void *bytes, size_t size, size_t *len)
{
    size_t have = 0;
    while (have < size) {
        const ssize_t got = pread(fd, (char *)bytes + have, size - have, (off_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    *len = have;
    return 0;
}

int fa__file_store(int fd, const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        const ssize_t put = pwrite(fd, (const char *)bytes + done, len - done, (off_t)done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : EIO;
        done += (size_t)put;
    }
    return ftruncate(fd, (off_t)len) == 0 ? 0 : errno;
}
