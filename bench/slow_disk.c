// A disk on which every sync takes long, for the process that preloads this library while a file exists.
//
//   SLOW_DISK_FLAG=flag SLOW_DISK_MS=500 SLOW_DISK_LOG=log LD_PRELOAD=slow_disk.so headrace start …
//
// Syncs of the main thread, which runs the broker's event loop, are listed in the log: one path per line.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void note(int fd) {
    const char *log = getenv("SLOW_DISK_LOG");
    if (!log) return;
    char link[64], line[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, line, sizeof line - 1);
    if (length < 0) return;
    line[length++] = '\n';
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (out < 0) return;
    if (write(out, line, (size_t)length) < 0) perror("slow_disk");
    close(out);
}

static void wait_for_disk(int fd) {
    const char *flag = getenv("SLOW_DISK_FLAG"), *ms = getenv("SLOW_DISK_MS");
    if (!flag || !ms || access(flag, F_OK)) return;
    if (gettid() == getpid()) note(fd);
    long delay_ms = atol(ms);
    struct timespec rest = {delay_ms / 1000, delay_ms % 1000 * 1000000};
    nanosleep(&rest, NULL);
}

int fsync(int fd) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk(fd);
    return next(fd);
}

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk(fd);
    return next(fd);
}
