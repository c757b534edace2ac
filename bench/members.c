/* members: plays all members of many consumer groups on bare sockets, one connection each, and prints one JSON object.
 *
 *   members brokers=HOST:PORT topic=T groups=G members=M [pid=P] [key=number …]
 *
 * The groups are called T-0, T-1 and so on. Everybody joins; once every group is stable its members send a heartbeat every
 * heartbeat_ms (3000). Then, in turn:
 *   late=L          L more members join every group; measured is the time until all groups are stable again
 *   seconds=S       S seconds of heartbeats and, with rate=R, R commits a second of one offset each, over all members
 *   count=N         N commits as fast as they are answered, one in flight for each member
 * modern=1 joins by ConsumerGroupHeartbeat (KIP-848) instead of JoinGroup and SyncGroup; partitions=P is then how many
 * the topic has. cpu is what the process P, the broker, has spent on the last phase. Latencies are milliseconds, of offered
 * commits from the time at which each was due. At the end everybody leaves.
 */
#include "member.h"

#define EVENTS 512
#define SILENCE_MS 60000

static struct member *all;
static int poller, total, port;
static char host[64];

static void poll_until(int64_t until_ns) {
    int64_t left = until_ns - now_ns();
    struct epoll_event ready[EVENTS];
    struct timespec wait = {left > 0 ? left / 1000000000 : 0, left > 0 ? left % 1000000000 : 0};
    int events = epoll_pwait2(poller, ready, EVENTS, &wait, NULL);
    for (int i = 0; i < events; i++) receive(ready[i].data.ptr);
}

/* The phases */

static void open_members(int count) {
    for (int end = total + count; total < end; total++) {
        struct member *m = &all[total];
        m->group = total % opt.groups;
        m->reply = malloc(REPLY_BYTES_MAX), m->owned = malloc(REPLY_BYTES_MAX);
        if ((m->fd = open_connection(host, port)) < 0) die("connect");
        struct epoll_event readable = {.events = EPOLLIN, .data.ptr = m};
        epoll_ctl(poller, EPOLL_CTL_ADD, m->fd, &readable);
    }
}

static int is_stable(void) {
    long held = 0;
    for (int i = 0; i < total; i++) {
        if (!all[i].synced || all[i].generation != all[i % opt.groups].generation) return 0;
        if (opt.modern && !all[i].holds) return 0; /* there is a share for everybody */
        held += all[i].holds;
    }
    return !opt.modern || held == opt.partitions * opt.groups;
}

/* Heartbeats are a steady stream, in turn over all members; whoever is joining is passed over. */
static struct { int64_t start_ns, sent; } beating;

static int64_t next_beat_ns(void) { return beating.start_ns + beating.sent * opt.heartbeat_ms * 1000000 / total; }

static void send_beats(int64_t now) {
    if (!beating.start_ns) beating.start_ns = now;
    for (; next_beat_ns() <= now; beating.sent++) {
        struct member *m = &all[beating.sent % total];
        /* A member of the new protocol has one heartbeat in flight: its epoch may rise with the answer. */
        if (m->synced && (opt.modern ? m->first == m->next : !is_full(m))) beat(m);
    }
}

static double seconds_until_stable(int from) {
    int64_t start = now_ns();
    beating.start_ns = beating.sent = 0;
    for (int i = from; i < total; i++) {
        if (opt.modern) beat_modern(&all[i], 0);
        else join(&all[i]);
    }
    while (!is_stable()) {
        int64_t now = now_ns();
        if (now - start > (int64_t)SILENCE_MS * 1000000) give_up("the groups are not stable after a minute", 0);
        send_beats(now);
        poll_until(next_beat_ns());
    }
    return (now_ns() - start) / 1e9;
}

static double offer_for(double seconds) {
    int64_t start = now_ns(), end = start + (int64_t)(seconds * 1e9), now;
    long due = (long)(opt.rate * seconds), sent = 0;
    while ((now = now_ns()) < end || committed < due) {
        if (now > end + (int64_t)SILENCE_MS * 1000000) give_up("commits are unanswered after a minute", due - committed);
        send_beats(now);
        int64_t next = next_beat_ns();
        for (; sent < due; sent++) {
            int64_t due_ns = start + sent * 1000000000 / opt.rate;
            if (due_ns > now || is_full(&all[sent % total])) { next = due_ns > now && due_ns < next ? due_ns : next; break; }
            commit(&all[sent % total], due_ns);
        }
        poll_until(next);
    }
    return (now_ns() - start) / 1e9;
}

static double commit_all(long count) {
    int64_t start = now_ns();
    long sent = 0;
    for (; sent < count && sent < total; sent++) commit(&all[sent], now_ns());
    while (committed < count) {
        int64_t now = now_ns();
        if (now - start > 5L * SILENCE_MS * 1000000) give_up("commits are unanswered", count - committed);
        struct epoll_event ready[EVENTS];
        int events = epoll_wait(poller, ready, EVENTS, 100);
        for (int i = 0; i < events; i++) {
            struct member *m = ready[i].data.ptr;
            long before = committed;
            receive(m);
            for (; before < committed && sent < count; before++, sent++) commit(m, now_ns());
        }
        send_beats(now);
    }
    return (now_ns() - start) / 1e9;
}

static void leave_all(void) {
    int64_t start = now_ns();
    for (int i = 0; i < total; i++) leave(&all[i]);
    for (int i = 0; i < total; i++)
        while (all[i].first != all[i].next && now_ns() - start < (int64_t)SILENCE_MS * 1000000)
            poll_until(now_ns() + 100000000);
}

/* Of all threads of a process, in seconds. */
static double cpu_seconds(void) {
    char path[64], stat[1024] = "";
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", opt.pid);
    FILE *file = opt.pid ? fopen(path, "r") : NULL;
    if (!file) return 0;
    if (fgets(stat, sizeof stat, file) && strrchr(stat, ')'))
        sscanf(strrchr(stat, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel);
    fclose(file);
    return (double)(user + kernel) / sysconf(_SC_CLK_TCK);
}

static void read_option(char *text) {
    struct { const char *key; long *place; } numbers[] = {
        {"groups", &opt.groups}, {"members", &opt.members}, {"late", &opt.late}, {"seconds", &opt.seconds},
        {"rate", &opt.rate}, {"count", &opt.count}, {"modern", &opt.modern}, {"partitions", &opt.partitions},
        {"heartbeat_ms", &opt.heartbeat_ms}, {"session_ms", &opt.session_ms}, {"pid", &opt.pid},
    };
    char *value = strchr(text, '=');
    if (!value) give_up("every argument is key=value", 0);
    *value++ = 0;
    if (!strcmp(text, "brokers")) { opt.brokers = value; return; }
    if (!strcmp(text, "topic")) { opt.topic = value; return; }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(text, numbers[i].key)) { *numbers[i].place = atol(value); return; }
    give_up(text, 0);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) read_option(argv[i]);
    if (!opt.brokers || !opt.topic || sscanf(opt.brokers, "%63[^:]:%d", host, &port) != 2) give_up("brokers= topic=", 0);
    lift_descriptor_limit();
    all = calloc(opt.groups * (opt.members + opt.late), sizeof *all);
    took_ns = calloc(opt.rate * opt.seconds + opt.count + 1, sizeof *took_ns);
    poller = epoll_create1(0);
    find_coordinator(host, port, opt.topic);
    open_members(opt.groups * opt.members);
    double cpu = cpu_seconds(), joined = seconds_until_stable(0), rejoined = 0, seconds = 0;
    if (opt.late) {
        int from = total;
        open_members(opt.groups * opt.late);
        cpu = cpu_seconds();
        rejoined = seconds_until_stable(from);
    }
    beats = 0;
    if (opt.seconds || opt.count) cpu = cpu_seconds();
    if (opt.seconds) seconds = offer_for(opt.seconds);
    if (opt.count) seconds = commit_all(opt.count);
    cpu = cpu_seconds() - cpu;
    qsort(took_ns, committed, sizeof *took_ns, ascending);
    printf("{\"joined\": %.4f, \"rejoined\": %.4f, \"committed\": %ld, \"failed\": %ld, \"heartbeats\": %ld, "
           "\"seconds\": %.4f, \"cpu\": %.4f, \"commit_p50\": %.4f, \"commit_p99\": %.4f}\n",
           joined, rejoined, committed - refused, refused, beats, seconds, cpu, took_ns[committed / 2] / 1e6,
           took_ns[committed * 99 / 100] / 1e6);
    leave_all();
    return refused ? 1 : 0;
}
