/* Files and directories: the only file of the library that calls POSIX file operations. Unless
 * stated otherwise a function returns 0, or the errno value that says why not; interrupted calls
 * are repeated. Paths are absolute or relative to the working directory at the time of the call. */
#ifndef FA_FILE_H
#define FA_FILE_H

#include "buf.h"

typedef struct fa__file_info {
    uint64_t bytes, device, inode, links;
    int64_t modified_ns; /* since 1970 */
    uint32_t owner, permissions;
    bool regular, directory;
} fa__file_info;

/* The system's text for an errno value, in `room` or static. */
const char *fa__file_reason(int error, char room[128]);

/* Appends `path`, with the working directory in front when it is relative. */
int fa__file_absolute(const char *path, fa__buf *out);

/* follow: what a symbolic link points to, not the link. */
int fa__file_stat(const char *path, bool follow, fa__file_info *info);
int fa__file_stat_open(int fd, fa__file_info *info);

/* Creates one directory; one that is there already is success. */
int fa__file_make_dir(const char *path, uint32_t permissions);
/* The same with every missing parent. */
int fa__file_make_dirs(const char *path, uint32_t permissions);

/* Reads a whole file into malloc'ed memory, with a NUL after it that *len does not count. EFBIG
 * when it holds more than `limit` bytes. plain: refuses what is not a regular file itself
 * (symbolic links, FIFOs) instead of following or blocking. `info` may be NULL. */
int fa__file_read(const char *path, bool plain, uint64_t limit, unsigned char **bytes, size_t *len,
                  fa__file_info *info);
/* At most `limit` bytes from the beginning of a file. */
int fa__file_read_prefix(const char *path, bool plain, uint64_t limit, unsigned char **bytes,
                         size_t *len);

/* Writes a new file in `dir` under a name that no other process or thread uses, to disk, and
 * appends its path to `path`. On failure no file is left and `path` is unchanged. */
int fa__file_write_temporary(const char *dir, uint32_t permissions, const void *bytes, size_t len,
                             fa__buf *path);
bool fa__file_is_temporary(const char *name); /* a name that the above gives */
int fa__file_rename(const char *from, const char *to);
int fa__file_remove(const char *path);
int fa__file_remove_dir(const char *path);
int fa__file_touch(const char *path); /* modified now */

/* Replaces the file at `path`, or that a symbolic link there leads to, as one unit: a reader sees
 * the old or the new one. ENOTSUP when a device or a FIFO lies there. */
int fa__file_replace(const char *path, const void *bytes, size_t len);

/* Calls back for each name in a directory but "." and "..", until false is returned. A name that
 * cannot be looked at is passed over, and the reason returned in the end. */
typedef bool (*fa__file_visitor)(void *user, const char *name, const fa__file_info *info);
int fa__file_list(const char *dir, fa__file_visitor visitor, void *user);

/* Opens a regular file for reading and writing, creating it when missing. */
int fa__file_open(const char *path, int *fd);
void fa__file_close(int fd); /* for files whose content was not written through fd */
/* Exclusive lock on one byte, owned by this opening of the file: released when it is closed, also
 * by a crash. EAGAIN: another opening holds it. Anything else: locks do not work here. */
int fa__file_lock(int fd, uint64_t offset);
void fa__file_unlock(int fd, uint64_t offset);
/* The first bytes of an open file. */
int fa__file_load(int fd, void *bytes, size_t size, size_t *len);
/* Makes `bytes` the content of an open file, in place. */
int fa__file_store(int fd, const void *bytes, size_t len);

#endif
