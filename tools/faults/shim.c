/* A disk and a clock that fail on command: loaded with LD_PRELOAD, controlled through a shared page.

   Only regular files under FAULT_SHIM_FOLDER are touched. Every fault that took place is counted in the page, so that a
   test can assert it. The layout is that of `Page` in shim.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct page {
    volatile int64_t fsync_delay_ms;   /* every fsync takes this much longer */
    volatile int64_t fsync_errno;      /* every fsync fails with it; 0 = none */
    volatile int64_t write_errno;      /* every write fails with it; 0 = none */
    volatile int64_t short_writes;     /* every write longer than one byte writes half */
    volatile int64_t bytes_left;       /* ENOSPC after this many bytes; -1 = unlimited */
    volatile int64_t clock_shift_s;    /* added to the wall clock, never to the monotonic one */
    volatile int64_t slow_fsyncs, failed_fsyncs, failed_writes, shortened_writes, full_writes, shifted_clocks;
};

static struct page *page;
static const char *folder;
static size_t folder_length;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off64_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *, void *);
static time_t (*real_time)(time_t *);

__attribute__((constructor)) static void load(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_pwrite64 = dlsym(RTLD_NEXT, "pwrite64");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    real_time = dlsym(RTLD_NEXT, "time");
    const char *control = getenv("FAULT_SHIM_PAGE");
    folder = getenv("FAULT_SHIM_FOLDER");
    if (control == NULL || folder == NULL) return;
    folder_length = strlen(folder);
    int file = open(control, O_RDWR);
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) page = found;
}

static void count(volatile int64_t *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

static int ours(int file) {
    struct stat found;
    char link[64], path[4096];
    int saved = errno;
    if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) { errno = saved; return 0; }
    char *end = link + sizeof link;
    char *digit = end - 1;
    *digit = 0;
    for (int rest = file; digit == end - 1 || rest > 0; rest /= 10) *--digit = (char)('0' + rest % 10);
    static const char prefix[] = "/proc/self/fd/";
    digit -= sizeof prefix - 1;
    memcpy(digit, prefix, sizeof prefix - 1);
    ssize_t length = readlink(digit, path, sizeof path);
    errno = saved;
    return length > (ssize_t)folder_length && memcmp(path, folder, folder_length) == 0;
}

/* How many of `size` bytes may be written now; -1 with errno set when the write fails. */
static ssize_t allowed(int file, size_t size) {
    if (page == NULL || (!page->write_errno && !page->short_writes && page->bytes_left < 0) || !ours(file)) return (ssize_t)size;
    if (page->write_errno) { count(&page->failed_writes); errno = (int)page->write_errno; return -1; }
    if (page->short_writes && size > 1) { count(&page->shortened_writes); size /= 2; }
    if (page->bytes_left >= 0) {
        int64_t left = page->bytes_left;
        if (left < (int64_t)size) count(&page->full_writes);
        if (left == 0) { errno = ENOSPC; return -1; }
        if (left < (int64_t)size) size = (size_t)left;
        __atomic_sub_fetch(&page->bytes_left, (int64_t)size, __ATOMIC_RELAXED);
    }
    return (ssize_t)size;
}

ssize_t write(int file, const void *data, size_t size) {
    ssize_t some = allowed(file, size);
    return some < 0 ? -1 : real_write(file, data, (size_t)some);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    ssize_t some = allowed(file, size);
    return some < 0 ? -1 : real_pwrite(file, data, (size_t)some, offset);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    ssize_t some = allowed(file, size);
    return some < 0 ? -1 : real_pwrite64(file, data, (size_t)some, offset);
}

/* A gathered write is cut at the end of its first part: short enough for every fault. */
ssize_t writev(int file, const struct iovec *parts, int number) {
    size_t size = 0;
    for (int index = 0; index < number; index++) size += parts[index].iov_len;
    ssize_t some = allowed(file, size);
    if (some < 0) return -1;
    if ((size_t)some == size) return real_writev(file, parts, number);
    return real_write(file, parts[0].iov_base, (size_t)some < parts[0].iov_len ? (size_t)some : parts[0].iov_len);
}

static int synchronise(int file, int (*real)(int)) {
    if (page == NULL || (!page->fsync_delay_ms && !page->fsync_errno) || !ours(file)) return real(file);
    if (page->fsync_delay_ms) {
        count(&page->slow_fsyncs);
        struct timespec pause = {page->fsync_delay_ms / 1000, page->fsync_delay_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    if (page->fsync_errno) { count(&page->failed_fsyncs); errno = (int)page->fsync_errno; return -1; }
    return real(file);
}

int fsync(int file) { return synchronise(file, real_fsync); }
int fdatasync(int file) { return synchronise(file, real_fdatasync); }

static int64_t shift(void) {
    if (page == NULL || page->clock_shift_s == 0) return 0;
    count(&page->shifted_clocks);
    return page->clock_shift_s;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = real_clock_gettime(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = real_gettimeofday(now, zone);
    if (result == 0) now->tv_sec += shift();
    return result;
}

time_t time(time_t *out) {
    time_t now = real_time(NULL) + shift();
    if (out != NULL) *out = now;
    return now;
}
