/* load: drives a broker through librdkafka with as little work of its own as possible, and prints one JSON object.
 *
 *   load first    brokers=HOST:PORT topic=T                  wait for the port, produce one record; when was it acked?
 *   load produce  brokers=… topic=T count=N [size=100]       as fast as the broker takes it
 *   load consume  brokers=… topic=T count=N                  from offset 0 of every partition
 *   load latency  brokers=… topic=T count=N rate=R [skip=S]  at a fixed rate, produced and consumed at once; the first S
 *                                                            messages warm up and are not counted. Also: the longest
 *                                                            time between two acks, from the S-th on. SIGTERM ends
 *                                                            the sending, and what was sent is what counts
 *
 * Further keys: topics=K spreads over T-0 … T-(K-1) instead of T; partitions=P of each topic; chunk=C consecutive
 * messages go to one partition before the next has its turn; limit_s=S gives up. conf.KEY=VALUE goes to librdkafka.
 * A topic must exist (mode `first` creates it) and, for `latency`, be empty. Times are seconds of CLOCK_MONOTONIC,
 * latencies milliseconds. Exit code 1: something was not delivered.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGES_A_CALL 1000 /* handed to librdkafka at once: enough to make the call itself free */
#define STAMP_BYTES 8        /* a message of the latency mode begins with the time at which it was sent */
#define CONF_MAX 64

struct options {
    const char *brokers, *topic;
    long topics, partitions, count, size, rate, skip, chunk, limit_s;
    int conf_count;
    char *conf_key[CONF_MAX], *conf_value[CONF_MAX];
};

static struct options opt = {.partitions = 1, .count = 1, .size = 100, .chunk = 1, .limit_s = 300};
static char problem[512];
static atomic_long acked, failed, received;
static atomic_int producing = 1;
static volatile sig_atomic_t is_enough;
static int64_t *ack_ns, *receive_ns, last_ack_ns, longest_pause_ns;
static rd_kafka_topic_t **topics;
static char *bytes; /* of the message: one for all, stamped by the latency mode */

static void die(const char *what) { fprintf(stderr, "load: %s\n", what), exit(2); }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int is_late(int64_t start) { return now_ns() - start > opt.limit_s * 1000000000; }

static void sleep_until(int64_t at_ns) {
    struct timespec t = {at_ns / 1000000000, at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) { }
}

static void read_option(char *text) {
    char *value = strchr(text, '=');
    if (!value) die("every argument after the mode is key=value");
    *value++ = 0;
    if (!strncmp(text, "conf.", 5)) {
        if (opt.conf_count == CONF_MAX) die("too many conf. arguments");
        opt.conf_key[opt.conf_count] = text + 5;
        opt.conf_value[opt.conf_count++] = value;
        return;
    }
    if (!strcmp(text, "brokers")) { opt.brokers = value; return; }
    if (!strcmp(text, "topic")) { opt.topic = value; return; }
    struct { const char *key; long *place; } numbers[] = {
        {"topics", &opt.topics}, {"partitions", &opt.partitions}, {"count", &opt.count}, {"size", &opt.size},
        {"rate", &opt.rate},     {"skip", &opt.skip},             {"chunk", &opt.chunk}, {"limit_s", &opt.limit_s},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(text, numbers[i].key)) { *numbers[i].place = atol(value); return; }
    die("unknown key");
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    if (rd_kafka_conf_set(conf, key, value, problem, sizeof problem)) die(problem);
}

/* The settings of the command line come last and win. A producer's setting given to a consumer, or the other way
 * round, is no error to librdkafka: so one command line serves both clients of the latency mode. */
static rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    set(conf, "bootstrap.servers", opt.brokers);
    set(conf, "log_level", "3");
    for (int i = 0; i < opt.conf_count; i++) set(conf, opt.conf_key[i], opt.conf_value[i]);
    rd_kafka_t *rk = rd_kafka_new(type, conf, problem, sizeof problem);
    if (!rk) die(problem);
    return rk;
}

static int64_t since_stamp(const rd_kafka_message_t *message) {
    int64_t sent, now = now_ns();
    memcpy(&sent, message->payload, STAMP_BYTES);
    return now - sent;
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) {
        if (!failed++) fprintf(stderr, "load: not delivered: %s\n", rd_kafka_err2str(message->err));
        return;
    }
    if (ack_ns) {
        int64_t now = now_ns();
        if (acked > opt.skip && now - last_ack_ns > longest_pause_ns) longest_pause_ns = now - last_ack_ns;
        last_ack_ns = now;
        ack_ns[acked] = since_stamp(message);
    }
    acked++;
}

static int topic_count(void) { return opt.topics ? opt.topics : 1; }

static const char *topic_name(int i) {
    static char name[256];
    if (!opt.topics) return opt.topic;
    snprintf(name, sizeof name, "%s-%d", opt.topic, i);
    return name;
}

/* The n-th message's partition, and by `topic` its topic: chunk by chunk, topic by topic, partition by partition. */
static int place_of(long n, int *topic) {
    long turn = n / opt.chunk;
    *topic = turn % topic_count();
    return turn / topic_count() % opt.partitions;
}

/* A producer with its topics opened and its message made. */
static rd_kafka_t *producer(int only_failures) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "queue.buffering.max.messages", "500000");
    set(conf, "queue.buffering.max.kbytes", "1000000");
    if (only_failures) set(conf, "delivery.report.only.error", "true");
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf);
    topics = calloc(topic_count(), sizeof *topics);
    for (int i = 0; i < topic_count(); i++) topics[i] = rd_kafka_topic_new(rk, topic_name(i), NULL);
    bytes = malloc(opt.size);
    for (long i = 0; i < opt.size; i++) bytes[i] = 'a' + (i * 11 + i / 17) % 26;
    return rk;
}

/* As fast as it goes: the payload is shared by all messages and never copied, and only failures are reported. */
static double produce(void) {
    rd_kafka_t *rk = producer(1);
    rd_kafka_message_t batch[MESSAGES_A_CALL];
    int64_t start = now_ns();
    long sent = 0;
    while (sent < opt.count) {
        int topic, partition = place_of(sent, &topic);
        long room = opt.chunk - sent % opt.chunk, wanted = opt.count - sent;
        if (wanted > room) wanted = room;
        if (wanted > MESSAGES_A_CALL) wanted = MESSAGES_A_CALL;
        memset(batch, 0, wanted * sizeof *batch);
        for (long i = 0; i < wanted; i++) batch[i].payload = bytes, batch[i].len = opt.size;
        /* Messages are taken from the front until the queue is full, so the next call goes on from there. */
        long taken = rd_kafka_produce_batch(topics[topic], partition, 0, batch, wanted);
        sent += taken;
        if (taken < wanted) {
            if (batch[taken].err != RD_KAFKA_RESP_ERR__QUEUE_FULL) die(rd_kafka_err2str(batch[taken].err));
            rd_kafka_poll(rk, 1);
        }
        if (is_late(start)) break;
    }
    rd_kafka_flush(rk, (int)(opt.limit_s * 1000));
    double seconds = (now_ns() - start) / 1e9;
    acked = sent - failed - rd_kafka_outq_len(rk);
    return seconds;
}

static void on_enough(int signal_number) { (void)signal_number, is_enough = 1; }

static void *serve_reports(void *rk) {
    while (producing) rd_kafka_poll(rk, 50);
    return NULL;
}

static rd_kafka_t *consumer(void) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "group.id", "load"); /* librdkafka wants a name, though nothing is committed and no group joined */
    set(conf, "enable.auto.commit", "false");
    set(conf, "enable.auto.offset.store", "false");
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(rk);
    rd_kafka_topic_partition_list_t *all = rd_kafka_topic_partition_list_new(topic_count() * opt.partitions);
    for (int t = 0; t < topic_count(); t++)
        for (int p = 0; p < opt.partitions; p++)
            rd_kafka_topic_partition_list_add(all, topic_name(t), p)->offset = 0;
    rd_kafka_resp_err_t refused = rd_kafka_assign(rk, all);
    if (refused) die(rd_kafka_err2str(refused));
    rd_kafka_topic_partition_list_destroy(all);
    return rk;
}

static double consume(void) {
    static rd_kafka_message_t *batch[10 * MESSAGES_A_CALL];
    int64_t start = now_ns();
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer());
    while (received < opt.count && !is_late(start)) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 20, batch, 10 * MESSAGES_A_CALL);
        for (ssize_t i = 0; i < n; i++) {
            if (!batch[i]->err) received++;
            rd_kafka_message_destroy(batch[i]);
        }
    }
    return (now_ns() - start) / 1e9;
}

static void *receive_stamped(void *rk) {
    int64_t start = now_ns();
    while (received < opt.count && !is_late(start)) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(rk, 50);
        if (!message) continue;
        if (!message->err) receive_ns[received++] = since_stamp(message);
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

/* One record after the other at the rate's beat. A thread waits for the acks, so that none lies unseen. */
static double latency(void) {
    if (opt.rate <= 0) die("latency needs a rate");
    ack_ns = calloc(opt.count, sizeof *ack_ns);
    receive_ns = calloc(opt.count, sizeof *receive_ns);
    prctl(PR_SET_TIMERSLACK, 1000); /* ns: the default lets every sleep oversleep by 50 µs */
    pthread_t receiver, reporter;
    pthread_create(&receiver, NULL, receive_stamped, consumer());
    rd_kafka_t *rk = producer(0);
    pthread_create(&reporter, NULL, serve_reports, rk);
    signal(SIGTERM, on_enough);
    int64_t start = now_ns();
    for (long i = 0; i < opt.count; i++) {
        if (is_enough) { opt.count = i; break; }
        sleep_until(start + (int64_t)((double)i / opt.rate * 1e9));
        int64_t at = now_ns();
        memcpy(bytes, &at, STAMP_BYTES);
        int topic, partition = place_of(i, &topic);
        if (rd_kafka_produce(topics[topic], partition, RD_KAFKA_MSG_F_COPY, bytes, opt.size, NULL, 0, NULL))
            die(rd_kafka_err2str(rd_kafka_last_error()));
    }
    double seconds = (now_ns() - start) / 1e9; /* of sending: says whether the rate was kept */
    rd_kafka_flush(rk, (int)(opt.limit_s * 1000));
    producing = 0;
    pthread_join(reporter, NULL);
    pthread_join(receiver, NULL);
    return seconds;
}

static double first(void) {
    char host[64];
    int port;
    if (sscanf(opt.brokers, "%63[^:]:%d", host, &port) != 2) die("brokers is HOST:PORT");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &at.sin_addr);
    int64_t start = now_ns();
    for (;;) {
        int probe = socket(AF_INET, SOCK_STREAM, 0);
        int open = !connect(probe, (struct sockaddr *)&at, sizeof at);
        close(probe);
        if (open) break;
        if (is_late(start)) die("the port never opened");
        sleep_until(now_ns() + 1000000);
    }
    rd_kafka_t *rk = producer(0);
    if (rd_kafka_produce(topics[0], 0, 0, bytes, opt.size, NULL, 0, NULL)) die("the first record was refused");
    while (!acked && !failed && !is_late(start)) rd_kafka_poll(rk, 100);
    return now_ns() / 1e9;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_percentiles(const char *name, int64_t *ns, long n) {
    if (n <= opt.skip) return;
    ns += opt.skip, n -= opt.skip;
    qsort(ns, n, sizeof *ns, ascending);
    printf(", \"%s_p50\": %.4f, \"%s_p99\": %.4f, \"%s_p999\": %.4f", name, ns[n / 2] / 1e6, name, ns[n * 99 / 100] / 1e6,
           name, ns[n * 999 / 1000] / 1e6);
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: load first|produce|consume|latency brokers=HOST:PORT topic=TOPIC [key=value …]");
    for (int i = 2; i < argc; i++) read_option(argv[i]);
    if (!opt.brokers || !opt.topic) die("brokers= and topic= are needed");
    if (opt.size < STAMP_BYTES || opt.partitions < 1 || opt.chunk < 1 || opt.count < 1) die("a number is too small");
    struct { const char *name; double (*run)(void); } modes[] = {
        {"first", first}, {"produce", produce}, {"consume", consume}, {"latency", latency}};
    int mode = 0;
    while (strcmp(argv[1], modes[mode].name)) if (++mode == 4) die("unknown mode");
    double seconds = modes[mode].run();
    printf("{\"acked\": %ld, \"failed\": %ld, \"received\": %ld, \"seconds\": %.6f", acked, failed, received, seconds);
    if (ack_ns) print_percentiles("ack", ack_ns, acked), printf(", \"pause_max\": %.4f", longest_pause_ns / 1e6);
    if (receive_ns) print_percentiles("receive", receive_ns, received);
    printf("}\n");
    fflush(stdout);
    long done = modes[mode].run == consume ? received : acked;
    _exit(failed || done < opt.count); /* without librdkafka's slow farewell: everything counted has been acked */
}
