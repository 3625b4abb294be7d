/* Counts the calls of one process that change something below one folder, and makes one of them
   its last: LD_PRELOAD=last_call.so LAST_CALL_ROOT=… LAST_CALL_CONTROL=… LAST_CALL_LOG=…

   The control file holds three 64-bit numbers: calls so far, the number of the call that is not
   made any more (0: none), and whether half of it is made first, where it writes. One counter
   serves all threads, so that every call of a process can be the last one; strace counts for each
   thread and each system call on its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct control {
    _Atomic unsigned long count, last, half;
};
static struct control *control;
static const char *root;
static int log_descriptor = -1;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LAST_CALL_CONTROL"), *log = getenv("LAST_CALL_LOG");
    root = getenv("LAST_CALL_ROOT");
    if (!path || !log || !root) return;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    void *map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    log_descriptor = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (map == MAP_FAILED || log_descriptor < 0) abort();
    control = map;
    syscall(SYS_close, file);
}

/* Count a call on this path; true if only half of it may be made, and `die` called then. */
static int counted(const char *name, const char *path, int is_write) {
    char line[4200];
    size_t length = strlen(root);
    if (strncmp(path, root, length) != 0 || (path[length] != '/' && path[length] != 0)) return 0;
    unsigned long number = atomic_fetch_add(&control->count, 1) + 1;
    int written = snprintf(line, sizeof line, "%lu %s %s\n", number, name, path + length);
    syscall(SYS_write, log_descriptor, line, written);
    if (number != control->last) return 0;
    if (is_write && control->half) return 1;
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static int counted_fd(const char *name, int descriptor, int is_write) {
    char link[32], path[4096];
    if (!control) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return counted(name, path, is_write);
}

static void counted_at(const char *name, int folder, const char *path) {
    char link[32], whole[8192];
    if (!control) return;
    if (path[0] == '/' || folder == AT_FDCWD) {
        counted(name, path, 0);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, whole, 4000);
    if (length < 0) return;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    counted(name, whole, 0);
}

ssize_t write(int file, const void *data, size_t size) {
    if (counted_fd("write", file, 1)) {
        syscall(SYS_write, file, data, size / 2);
        die();
    }
    return syscall(SYS_write, file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t place) {
    counted_fd("pwrite", file, 0);
    return syscall(SYS_pwrite64, file, data, size, place);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (counted_fd("writev", file, 1)) {
        struct iovec half = parts[count - 1];
        syscall(SYS_writev, file, parts, count - 1);
        half.iov_len /= 2;
        syscall(SYS_writev, file, &half, 1);
        die();
    }
    return syscall(SYS_writev, file, parts, count);
}

#define ON_FILE(name, number)                                                                      \
    int name(int file) {                                                                           \
        counted_fd(#name, file, 0);                                                                \
        return syscall(number, file);                                                              \
    }
ON_FILE(fdatasync, SYS_fdatasync)
ON_FILE(fsync, SYS_fsync)
ON_FILE(syncfs, SYS_syncfs)

int ftruncate64(int file, off64_t length) {
    counted_fd("ftruncate", file, 0);
    return syscall(SYS_ftruncate, file, length);
}

int ftruncate(int file, off_t length) { return ftruncate64(file, length); }

int renameat(int old_folder, const char *old, int new_folder, const char *new) {
    counted_at("rename", new_folder, new);
    return syscall(SYS_renameat2, old_folder, old, new_folder, new, 0);
}

int renameat2(int old_folder, const char *old, int new_folder, const char *new, unsigned flags) {
    counted_at("rename", new_folder, new);
    return syscall(SYS_renameat2, old_folder, old, new_folder, new, flags);
}

int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int linkat(int old_folder, const char *old, int new_folder, const char *new, int flags) {
    counted_at("link", new_folder, new);
    return syscall(SYS_linkat, old_folder, old, new_folder, new, flags);
}

int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *path, int flags) {
    counted_at(flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, path);
    return syscall(SYS_unlinkat, folder, path, flags);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    counted_at("mkdir", folder, path);
    return syscall(SYS_mkdirat, folder, path, mode);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static int open_counted(int folder, const char *path, int flags, va_list rest) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TRUNC)) counted_at("create", folder, path);
    if (flags & O_CREAT) mode = va_arg(rest, mode_t);
    return syscall(SYS_openat, folder, path, flags, mode);
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        int file = open_counted(AT_FDCWD, path, flags, rest);                                      \
        va_end(rest);                                                                              \
        return file;                                                                               \
    }
#define OPEN_AT(name)                                                                              \
    int name(int folder, const char *path, int flags, ...) {                                       \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        int file = open_counted(folder, path, flags, rest);                                        \
        va_end(rest);                                                                              \
        return file;                                                                               \
    }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)
