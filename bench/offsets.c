/* offsets: commits many offsets on bare sockets, or waits for them to be there again. Prints one JSON object.
 *
 *   offsets fill   brokers=HOST:PORT topic=T groups=G partitions=P count=N   N commits, P in a request, no members
 *   offsets fetch  brokers=HOST:PORT topic=T groups=G partitions=P count=N   knocks at the port until it is open, then asks
 *                                                                            for every group until each has its offset
 *
 * The groups are called T-0, T-1 and so on; each gets the same number of requests, and the offset that it commits is the
 * number of the request. `first` and `all` are seconds of CLOCK_MONOTONIC: the first group, and the last, has answered.
 */
#include "wire.h"

#define FRAME_BYTES_MAX (64 * 1024)
#define PARTITIONS_MAX 1000
#define PAUSE_US 1000
#define GIVE_UP_S 300

enum api { COMMIT = 8, FETCH = 9 };
enum error { LOADING = 14, NOT_AVAILABLE = 15, NOT_COORDINATOR = 16 };

static struct { const char *brokers, *topic; long groups, partitions, count; } opt = {.groups = 1, .partitions = 1, .count = 1};
static uint8_t room[FRAME_BYTES_MAX], reply[FRAME_BYTES_MAX];
static struct frame frame = {.at = room};
static char host[64];
static int port, fd;

static void give_up(const char *what, long code) {
    fprintf(stderr, "offsets: %s (%ld)\n", what, code);
    exit(1);
}

static void begin(enum api api, int version, long group) {
    char name[300];
    snprintf(name, sizeof name, "%s-%ld", opt.topic, group);
    begin_frame(&frame, api, version, 1, "offsets");
    put_string(&frame, name);
}

static void put_commit(long group, int64_t offset) {
    begin(COMMIT, 7, group);
    put_int(&frame, -1, 4), put_string(&frame, ""), put_int(&frame, -1, 2); /* no generation, member, instance */
    put_int(&frame, 1, 4), put_string(&frame, opt.topic), put_int(&frame, opt.partitions, 4);
    for (long i = 0; i < opt.partitions; i++)
        put_int(&frame, i, 4), put_int(&frame, offset, 8), put_int(&frame, -1, 4), put_int(&frame, -1, 2);
    end_frame(&frame);
}

static void put_fetch(long group) {
    begin(FETCH, 5, group);
    put_int(&frame, 1, 4), put_string(&frame, opt.topic), put_int(&frame, 1, 4), put_int(&frame, opt.partitions - 1, 4);
    end_frame(&frame);
}

static void send_frame(void) {
    for (size_t sent = 0; sent < frame.bytes;) {
        ssize_t n = send(fd, frame.at + sent, frame.bytes - sent, MSG_NOSIGNAL);
        if (n <= 0) die("send");
        sent += n;
    }
}

/* The next answer, behind its correlation id. */
static struct cursor receive(void) {
    struct cursor answer = receive_answer(fd, reply, sizeof reply);
    take_int(&answer, 4);
    return answer;
}

static int ask(long group, int64_t expected) {
    put_fetch(group), send_frame();
    struct cursor c = receive();
    take_int(&c, 4);
    if (take_int(&c, 4) == 1) {
        take_string(&c, NULL, 0), take_int(&c, 4), take_int(&c, 4);
        int64_t offset = take_int(&c, 8);
        take_int(&c, 4), take_string(&c, NULL, 0);
        int error = take_int(&c, 2);
        if (!error && !take_int(&c, 2)) {
            if (offset != expected) give_up("a committed offset is gone", group);
            return 0;
        }
        return error ? error : LOADING;
    }
    return take_int(&c, 2);
}

/* A coordinator that has just been made may not be ready for every group yet. */
static void wait_until_loaded(void) {
    for (long group = 0; group < opt.groups; group++)
        while (ask(group, -1)) usleep(PAUSE_US);
}

/* One request for each group is on its way at any time: a broker answers them in their order. */
static void fill(void) {
    wait_until_loaded();
    long requests = opt.count / opt.partitions, sent = 0, ahead = opt.groups < 64 ? opt.groups : 64;
    int64_t start = now_ns();
    for (long answered = 0; answered < requests; answered++) {
        for (; sent < requests && sent < answered + ahead; sent++) put_commit(sent % opt.groups, sent / opt.groups), send_frame();
        struct cursor c = receive();
        take_int(&c, 4), take_int(&c, 4), take_string(&c, NULL, 0);
        for (long i = take_int(&c, 4); i > 0; i--) {
            take_int(&c, 4);
            int error = take_int(&c, 2);
            if (error) give_up("a commit was refused", error);
        }
    }
    printf("{\"failed\": 0, \"committed\": %ld, \"seconds\": %.4f}\n", requests * opt.partitions, (now_ns() - start) / 1e9);
}

static void fetch(void) {
    long last = opt.count / opt.partitions / opt.groups - 1;
    int64_t first = 0;
    for (long group = 0; group < opt.groups; group++) {
        int error;
        while ((error = ask(group, last))) {
            if (error < LOADING || error > NOT_COORDINATOR) give_up("a fetch was refused", error);
            usleep(PAUSE_US);
        }
        if (!first) first = now_ns();
    }
    printf("{\"failed\": 0, \"first\": %.6f, \"all\": %.6f}\n", first / 1e9, now_ns() / 1e9);
}

static void read_option(char *text) {
    struct { const char *key; long *place; } numbers[] = {
        {"groups", &opt.groups}, {"partitions", &opt.partitions}, {"count", &opt.count}};
    char *value = strchr(text, '=');
    if (!value) give_up("every argument after the mode is key=value", 0);
    *value++ = 0;
    if (!strcmp(text, "brokers")) { opt.brokers = value; return; }
    if (!strcmp(text, "topic")) { opt.topic = value; return; }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(text, numbers[i].key)) { *numbers[i].place = atol(value); return; }
    give_up(text, 0);
}

int main(int argc, char **argv) {
    for (int i = 2; i < argc; i++) read_option(argv[i]);
    if (argc < 2 || !opt.brokers || !opt.topic || sscanf(opt.brokers, "%63[^:]:%d", host, &port) != 2)
        give_up("offsets fill|fetch brokers= topic=", 0);
    if (opt.partitions > PARTITIONS_MAX) give_up("too many partitions for a frame", opt.partitions);
    int64_t start = now_ns();
    while ((fd = open_connection(host, port)) < 0) {
        if (now_ns() - start > GIVE_UP_S * 1000000000L) give_up("nobody listens", port);
        usleep(PAUSE_US);
    }
    if (!strcmp(argv[1], "fill")) find_coordinator(host, port, opt.topic), fill();
    else fetch();
    return 0;
}
