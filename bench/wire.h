/* wire.h: what the bare-socket programs share: bytes of the Kafka protocol, sockets, time. */
#ifndef WIRE_H
#define WIRE_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *what) {
    perror(what);
    exit(2);
}

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Writing: a frame grows at the end. Whoever makes it has made sure that its room suffices. */

struct frame {
    size_t bytes;
    uint8_t *at;
};

static inline void put(struct frame *f, const void *bytes, size_t n) {
    memcpy(f->at + f->bytes, bytes, n);
    f->bytes += n;
}

static inline void put_int(struct frame *f, int64_t value, int bytes) {
    for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) f->at[f->bytes++] = (uint8_t)(value >> shift);
}

static inline void set_int(struct frame *f, size_t at, int64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) f->at[at + i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

static inline void put_uvarint(struct frame *f, uint32_t value) {
    for (; value >= 0x80; value >>= 7) f->at[f->bytes++] = value | 0x80;
    f->at[f->bytes++] = value;
}

static inline void put_varint(struct frame *f, int value) {
    put_uvarint(f, ((uint32_t)value << 1) ^ (uint32_t)(value >> 31));
}

static inline void put_string(struct frame *f, const char *text) {
    put_int(f, strlen(text), 2);
    put(f, text, strlen(text));
}

static inline void put_compact_string(struct frame *f, const char *text) {
    put_uvarint(f, strlen(text) + 1);
    put(f, text, strlen(text));
}

/* Length (set by end_frame) and header of a request. */
static inline void begin_frame(struct frame *f, int api, int version, int correlation, const char *client) {
    f->bytes = 0;
    put_int(f, 0, 4), put_int(f, api, 2), put_int(f, version, 2), put_int(f, correlation, 4), put_string(f, client);
}

static inline void end_frame(struct frame *f) { set_int(f, 0, f->bytes - 4, 4); }

/* Reading: a cursor over one answer. An answer that is shorter than it should be is a reason to give up. */

struct cursor {
    const uint8_t *at, *end;
};

static inline const uint8_t *take(struct cursor *c, size_t n) {
    if ((size_t)(c->end - c->at) < n) fprintf(stderr, "an answer ends too early\n"), exit(2);
    c->at += n;
    return c->at - n;
}

static inline int64_t take_int(struct cursor *c, int bytes) {
    const uint8_t *from = take(c, bytes);
    int64_t value = (int8_t)from[0];
    for (int i = 1; i < bytes; i++) value = value * 256 + from[i];
    return value;
}

static inline uint32_t take_uvarint(struct cursor *c) {
    uint32_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *take(c, 1);
        value |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
}

/* A string of either encoding; null is told as an empty one. Copied to `to` if there is one. */
static inline void take_text(struct cursor *c, int64_t length, char *to, size_t room) {
    if (length < 0) length = 0;
    const uint8_t *from = take(c, length);
    if (!to) return;
    if ((size_t)length >= room) fprintf(stderr, "a name of %ld bytes\n", (long)length), exit(2);
    memcpy(to, from, length);
    to[length] = 0;
}

static inline void take_string(struct cursor *c, char *to, size_t room) { take_text(c, take_int(c, 2), to, room); }

static inline void take_compact_string(struct cursor *c, char *to, size_t room) {
    take_text(c, (int64_t)take_uvarint(c) - 1, to, room);
}

/* Sockets */

static inline int open_connection(const char *host, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) return close(fd), -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

/* One whole answer, without its length; the caller has room for it. */
static inline struct cursor receive_answer(int fd, uint8_t *room, size_t bytes) {
    size_t have = 0, want = 4;
    while (have < want) {
        ssize_t n = recv(fd, room + have, want - have, 0);
        if (n <= 0) die("the broker closed a connection");
        have += n;
        if (have == 4 && want == 4) {
            struct cursor size = {room, room + 4};
            want = 4 + take_int(&size, 4);
            if (want > bytes) fprintf(stderr, "an answer of %zu bytes\n", want), exit(2);
        }
    }
    return (struct cursor){room + 4, room + want};
}

/* FindCoordinator, as every client does before it speaks of a group: the first one makes the broker's topic of offsets. */
static inline void find_coordinator(const char *host, int port, const char *group) {
    uint8_t bytes[1024], answer[1024];
    struct frame f = {.at = bytes};
    int fd = open_connection(host, port);
    if (fd < 0) die("connect");
    for (int tries = 0; tries < 600; tries++, usleep(100000)) {
        begin_frame(&f, 10, 1, 1, "bench");
        put_string(&f, group), put_int(&f, 0, 1);
        end_frame(&f);
        if (send(fd, f.at, f.bytes, MSG_NOSIGNAL) != (ssize_t)f.bytes) die("send");
        struct cursor c = receive_answer(fd, answer, sizeof answer);
        take_int(&c, 4), take_int(&c, 4);
        if (!take_int(&c, 2)) { close(fd); return; }
    }
    fprintf(stderr, "no coordinator after a minute\n"), exit(2);
}

static inline void lift_descriptor_limit(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static inline int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

#endif
