/* A wall clock that a test moves while a server runs: LD_PRELOAD this, and name an 8-byte file with
 * the shift in nanoseconds. The monotonic clock, and the kernel's own times of files, stay as they
 * are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t *shift;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALLCLOCK_SHIFT");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) shift = page;
}

static int is_wall(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*original)(clockid_t, struct timespec *);
    if (original == NULL) original = dlsym(RTLD_NEXT, "clock_gettime");
    int result = original != NULL ? original(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && shift != NULL && is_wall(clock)) {
        int64_t moved = now->tv_sec * SECOND + now->tv_nsec + *shift;
        now->tv_sec = moved / SECOND;
        now->tv_nsec = moved % SECOND;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *copy) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    if (copy != NULL) *copy = precise.tv_sec;
    return precise.tv_sec;
}
