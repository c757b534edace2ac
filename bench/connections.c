/* connections: many connections at once, which a librdkafka client (three threads each) could not hold.
 *
 *   connections HOST PORT TOPIC CONNECTIONS REQUESTS
 *
 * Opens CONNECTIONS sockets and keeps one Produce request in flight on each: acks=all, partition 0, one record of
 * 100 bytes, always the same frame. After REQUESTS answers it prints one JSON object and holds the connections open
 * until its standard input ends, so that the broker can be looked at with them.
 */
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

#define VALUE_BYTES 100
#define REPLY_BYTES_MAX 1024 /* the answer for one partition has some 60 bytes and the topic's name */
#define EVENTS 256
#define SILENCE_MS 60000

struct connection {
    int fd;
    size_t have;
    int64_t sent_ns;
    uint8_t reply[REPLY_BYTES_MAX];
};

static uint8_t frame[2048];
static size_t frame_bytes;

static void die(const char *what) {
    perror(what);
    exit(2);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void put(const void *bytes, size_t n) {
    memcpy(frame + frame_bytes, bytes, n);
    frame_bytes += n;
}

static void put_int(int64_t value, int bytes) {
    for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) frame[frame_bytes++] = (uint8_t)(value >> shift);
}

static void put_varint(int value) {
    uint32_t zigzag = ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
    for (; zigzag >= 0x80; zigzag >>= 7) frame[frame_bytes++] = zigzag | 0x80;
    frame[frame_bytes++] = zigzag;
}

static void put_string(const char *text) {
    put_int(strlen(text), 2);
    put(text, strlen(text));
}

static void set_int32(size_t at, uint32_t value) {
    for (int i = 0; i < 4; i++) frame[at + i] = value >> (24 - 8 * i);
}

static uint32_t crc32c(const uint8_t *bytes, size_t n) {
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78 & -(crc & 1));
    }
    return ~crc;
}

static void put_batch(void) {
    size_t batch = frame_bytes;
    int64_t now_ms = now_ns(CLOCK_REALTIME) / 1000000;
    put_int(0, 8), put_int(0, 4), put_int(-1, 4), put_int(2, 1), put_int(0, 4); /* offset, length, epoch, magic, crc */
    put_int(0, 2), put_int(0, 4), put_int(now_ms, 8), put_int(now_ms, 8);      /* attributes, last delta, times */
    put_int(-1, 8), put_int(-1, 2), put_int(-1, 4), put_int(1, 4);             /* no producer id; one record */
    put_varint(1 + 1 + 1 + 1 + 2 + VALUE_BYTES + 1);
    put_int(0, 1), put_varint(0), put_varint(0), put_varint(-1), put_varint(VALUE_BYTES);
    for (int i = 0; i < VALUE_BYTES; i++) frame[frame_bytes++] = 'a' + i % 26;
    put_varint(0);
    set_int32(batch + 8, frame_bytes - batch - 12);
    set_int32(batch + 17, crc32c(frame + batch + 21, frame_bytes - batch - 21));
}

/* Produce v7, the last version without compact encodings. Returns where the error code stands in its answer. */
static size_t build_frame(const char *topic) {
    put_int(0, 4), put_int(0, 2), put_int(7, 2), put_int(1, 4), put_string("connections");
    put_int(-1, 2), put_int(-1, 2), put_int(30000, 4); /* no transaction, acks=all, timeout */
    put_int(1, 4), put_string(topic), put_int(1, 4), put_int(0, 4);
    size_t records = frame_bytes;
    put_int(0, 4);
    put_batch();
    set_int32(records, frame_bytes - records - 4);
    set_int32(0, frame_bytes - 4);
    return 4 + 4 + 4 + 2 + strlen(topic) + 4 + 4;
}

static void ask(struct connection *c) {
    c->have = 0;
    c->sent_ns = now_ns(CLOCK_MONOTONIC);
    if (send(c->fd, frame, frame_bytes, MSG_NOSIGNAL) != (ssize_t)frame_bytes) die("send");
}

/* 1 when the answer is whole. */
static int take(struct connection *c) {
    ssize_t n = recv(c->fd, c->reply + c->have, sizeof c->reply - c->have, 0);
    if (n <= 0) die("the broker closed a connection");
    c->have += n;
    if (c->have < 4) return 0;
    uint32_t length;
    memcpy(&length, c->reply, 4);
    return c->have == ntohl(length) + 4;
}

static int open_connection(const char *host, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void lift_descriptor_limit(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "usage: connections HOST PORT TOPIC CONNECTIONS REQUESTS\n"), 2;
    int n = atoi(argv[4]);
    long requests = atol(argv[5]), asked = 0, answered = 0, refused = 0;
    if (strlen(argv[3]) > 200 || n < 1 || requests < n) return fprintf(stderr, "connections: bad arguments\n"), 2;
    lift_descriptor_limit();
    size_t error_at = build_frame(argv[3]);
    struct connection *all = calloc(n, sizeof *all);
    int64_t *took_ns = calloc(requests, sizeof *took_ns);
    int poller = epoll_create1(0);
    int64_t began = now_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++) {
        all[i].fd = open_connection(argv[1], atoi(argv[2]));
        struct epoll_event readable = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &readable);
    }
    int64_t start = now_ns(CLOCK_MONOTONIC);
    for (; asked < n; asked++) ask(&all[asked]);
    while (answered < requests) {
        struct epoll_event ready[EVENTS];
        int events = epoll_wait(poller, ready, EVENTS, SILENCE_MS);
        if (events <= 0) die("no answer for a minute");
        for (int i = 0; i < events; i++) {
            struct connection *c = ready[i].data.ptr;
            if (!take(c)) continue;
            took_ns[answered++] = now_ns(CLOCK_MONOTONIC) - c->sent_ns;
            int code = (int16_t)(c->reply[error_at] << 8 | c->reply[error_at + 1]);
            if (code && !refused++) fprintf(stderr, "connections: a request was answered with error code %d\n", code);
            if (asked < requests) ask(c), asked++;
        }
    }
    double seconds = (now_ns(CLOCK_MONOTONIC) - start) / 1e9;
    qsort(took_ns, answered, sizeof *took_ns, ascending);
    printf("{\"acked\": %ld, \"failed\": %ld, \"connect_seconds\": %.4f, \"seconds\": %.6f, \"ack_p50\": %.4f, "
           "\"ack_p99\": %.4f, \"ack_p999\": %.4f}\n",
           answered - refused, refused, (start - began) / 1e9, seconds, took_ns[answered / 2] / 1e6,
           took_ns[answered * 99 / 100] / 1e6, took_ns[answered * 999 / 1000] / 1e6);
    fflush(stdout);
    while (getchar() != EOF) { }
    return refused ? 1 : 0;
}
