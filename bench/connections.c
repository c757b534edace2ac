/* connections: many connections at once, which a librdkafka client (three threads each) could not hold.
 *
 *   connections HOST PORT TOPIC CONNECTIONS REQUESTS
 *
 * Opens CONNECTIONS sockets and keeps one Produce request in flight on each: acks=all, partition 0, one record of
 * 100 bytes, always the same frame. After REQUESTS answers it prints one JSON object and holds the connections open
 * until its standard input ends, so that the broker can be looked at with them.
 */
#include "wire.h"

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

static uint8_t bytes[2048];
static struct frame frame = {.at = bytes};

static uint32_t crc32c(const uint8_t *bytes, size_t n) {
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78 & -(crc & 1));
    }
    return ~crc;
}

static void put_batch(struct frame *f) {
    size_t batch = f->bytes;
    int64_t now_ms = clock_ns(CLOCK_REALTIME) / 1000000;
    put_int(f, 0, 8), put_int(f, 0, 4), put_int(f, -1, 4), put_int(f, 2, 1); /* offset, length, epoch, magic */
    put_int(f, 0, 4), put_int(f, 0, 2), put_int(f, 0, 4);                    /* checksum, attributes, last delta */
    put_int(f, now_ms, 8), put_int(f, now_ms, 8);
    put_int(f, -1, 8), put_int(f, -1, 2), put_int(f, -1, 4), put_int(f, 1, 4); /* no producer id; one record */
    put_varint(f, 1 + 1 + 1 + 1 + 2 + VALUE_BYTES + 1);
    put_int(f, 0, 1), put_varint(f, 0), put_varint(f, 0), put_varint(f, -1), put_varint(f, VALUE_BYTES);
    for (int i = 0; i < VALUE_BYTES; i++) put_int(f, 'a' + i % 26, 1);
    put_varint(f, 0);
    set_int(f, batch + 8, f->bytes - batch - 12, 4);
    set_int(f, batch + 17, crc32c(f->at + batch + 21, f->bytes - batch - 21), 4);
}

/* Produce v7, the last version without compact encodings. Returns where the error code stands in its answer. */
static size_t build_frame(const char *topic) {
    struct frame *f = &frame;
    begin_frame(f, 0, 7, 1, "connections");
    put_int(f, -1, 2), put_int(f, -1, 2), put_int(f, 30000, 4); /* no transaction, acks=all, timeout */
    put_int(f, 1, 4), put_string(f, topic), put_int(f, 1, 4), put_int(f, 0, 4);
    size_t records = f->bytes;
    put_int(f, 0, 4);
    put_batch(f);
    set_int(f, records, f->bytes - records - 4, 4);
    end_frame(f);
    return 4 + 4 + 4 + 2 + strlen(topic) + 4 + 4;
}

static void ask(struct connection *c) {
    c->have = 0;
    c->sent_ns = now_ns();
    if (send(c->fd, frame.at, frame.bytes, MSG_NOSIGNAL) != (ssize_t)frame.bytes) die("send");
}

/* 1 when the answer is whole. */
static int is_whole(struct connection *c) {
    ssize_t n = recv(c->fd, c->reply + c->have, sizeof c->reply - c->have, 0);
    if (n <= 0) die("the broker closed a connection");
    c->have += n;
    if (c->have < 4) return 0;
    uint32_t length;
    memcpy(&length, c->reply, 4);
    return c->have == ntohl(length) + 4;
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
    int64_t began = now_ns();
    for (int i = 0; i < n; i++) {
        if ((all[i].fd = open_connection(argv[1], atoi(argv[2]))) < 0) die("connect");
        struct epoll_event readable = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &readable);
    }
    int64_t start = now_ns();
    for (; asked < n; asked++) ask(&all[asked]);
    while (answered < requests) {
        struct epoll_event ready[EVENTS];
        int events = epoll_wait(poller, ready, EVENTS, SILENCE_MS);
        if (events <= 0) die("no answer for a minute");
        for (int i = 0; i < events; i++) {
            struct connection *c = ready[i].data.ptr;
            if (!is_whole(c)) continue;
            took_ns[answered++] = now_ns() - c->sent_ns;
            int code = (int16_t)(c->reply[error_at] << 8 | c->reply[error_at + 1]);
            if (code && !refused++) fprintf(stderr, "connections: a request was answered with error code %d\n", code);
            if (asked < requests) ask(c), asked++;
        }
    }
    double seconds = (now_ns() - start) / 1e9;
    qsort(took_ns, answered, sizeof *took_ns, ascending);
    printf("{\"acked\": %ld, \"failed\": %ld, \"connect_seconds\": %.4f, \"seconds\": %.6f, \"ack_p50\": %.4f, "
           "\"ack_p99\": %.4f, \"ack_p999\": %.4f}\n",
           answered - refused, refused, (start - began) / 1e9, seconds, took_ns[answered / 2] / 1e6,
           took_ns[answered * 99 / 100] / 1e6, took_ns[answered * 999 / 1000] / 1e6);
    fflush(stdout);
    while (getchar() != EOF) { }
    return refused ? 1 : 0;
}
