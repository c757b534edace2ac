/* member.h: one member of a group on a socket of its own: what it asks, and what it makes of the answers. */
#ifndef MEMBER_H
#define MEMBER_H

#include "wire.h"

#define NAME_MAX_BYTES 128
#define REPLY_BYTES_MAX (64 * 1024) /* the leader of a hundred members is told all of them: some 15 kB */
#define FRAME_BYTES_MAX (64 * 1024)
#define QUEUE 64 /* requests of one member that may be unanswered */

enum api { COMMIT = 8, JOIN = 11, HEARTBEAT = 12, LEAVE = 13, SYNC = 14, MODERN = 68 };
enum error { LOADING = 14, NOT_COORDINATOR = 16, REBALANCE = 27, MEMBER_ID_REQUIRED = 79 };

struct sent {
    enum api api;
    int64_t at_ns;
};

struct member {
    int fd, group, generation, synced, holds;
    char id[NAME_MAX_BYTES], leader[NAME_MAX_BYTES];
    unsigned first, next; /* of the queue */
    struct sent queue[QUEUE];
    size_t have;
    uint8_t *reply, *owned; /* owned: the assignment as it came, to be sent back */
    size_t owned_bytes;
};

static struct {
    const char *brokers, *topic;
    long groups, members, late, seconds, rate, count, modern, partitions, heartbeat_ms, session_ms, pid;
} opt = {.groups = 1, .members = 3, .partitions = 1, .heartbeat_ms = 3000, .session_ms = 45000};

static uint8_t frame_room[FRAME_BYTES_MAX];
static struct frame frame = {.at = frame_room};
static int64_t *took_ns;
static long committed, refused, beats, offset;

static void give_up(const char *what, long code) {
    fprintf(stderr, "members: %s (%ld)\n", what, code);
    exit(1);
}

static const char *group_name(struct member *m) {
    static char name[300];
    snprintf(name, sizeof name, "%s-%d", opt.topic, m->group);
    return name;
}

/* Asking */

static int is_full(struct member *m) { return m->next - m->first == QUEUE; }

static void ask(struct member *m, enum api api, int64_t due_ns) {
    end_frame(&frame);
    if (is_full(m)) give_up("too many requests are unanswered", QUEUE);
    m->queue[m->next++ % QUEUE] = (struct sent){api, due_ns};
    if (send(m->fd, frame.at, frame.bytes, MSG_NOSIGNAL) != (ssize_t)frame.bytes) die("send");
}

static void begin(struct member *m, enum api api, int version) {
    begin_frame(&frame, api, version, m->next, "members");
    put_string(&frame, group_name(m));
}

static void join(struct member *m) {
    m->synced = 0;
    begin(m, JOIN, 5);
    put_int(&frame, opt.session_ms, 4), put_int(&frame, 60000, 4), put_string(&frame, m->id), put_int(&frame, -1, 2);
    put_string(&frame, "consumer"), put_int(&frame, 1, 4), put_string(&frame, "range");
    put_int(&frame, 2 + 4 + 2 + strlen(opt.topic) + 4, 4); /* the subscription: version, topics, no user data */
    put_int(&frame, 0, 2), put_int(&frame, 1, 4), put_string(&frame, opt.topic), put_int(&frame, -1, 4);
    ask(m, JOIN, now_ns());
}

/* The leader gives everybody one partition: who gets which is nothing to the broker. */
static void sync_with(struct member *m, char (*ids)[NAME_MAX_BYTES], int count) {
    begin(m, SYNC, 3);
    put_int(&frame, m->generation, 4), put_string(&frame, m->id), put_int(&frame, -1, 2), put_int(&frame, count, 4);
    for (int i = 0; i < count; i++) {
        put_string(&frame, ids[i]);
        put_int(&frame, 2 + 4 + 2 + strlen(opt.topic) + 4 + 4 + 4, 4);
        put_int(&frame, 0, 2), put_int(&frame, 1, 4), put_string(&frame, opt.topic);
        put_int(&frame, 1, 4), put_int(&frame, i, 4), put_int(&frame, -1, 4);
    }
    ask(m, SYNC, now_ns());
}

static void beat_classic(struct member *m) {
    begin(m, HEARTBEAT, 3);
    put_int(&frame, m->generation, 4), put_string(&frame, m->id), put_int(&frame, -1, 2);
    ask(m, HEARTBEAT, now_ns());
}

/* Version 0, flexible: at the first one with the subscription, later with what it owns if that is new. */
static void beat_modern(struct member *m, int tells) {
    begin_frame(&frame, MODERN, 0, m->next, "members");
    put_uvarint(&frame, 0); /* no tags in the header */
    put_compact_string(&frame, group_name(m)), put_compact_string(&frame, m->id), put_int(&frame, m->generation, 4);
    put_uvarint(&frame, 0), put_uvarint(&frame, 0); /* no instance, no rack */
    put_int(&frame, m->generation ? -1 : 60000, 4); /* all that follows is said once */
    put_uvarint(&frame, m->generation ? 0 : 2); /* the topics, or the same as before */
    if (!m->generation) put_compact_string(&frame, opt.topic);
    put_uvarint(&frame, 0); /* no assignor of its own choice */
    if (!m->generation) put_uvarint(&frame, 1);
    else if (tells) put(&frame, m->owned, m->owned_bytes);
    else put_uvarint(&frame, 0);
    put_uvarint(&frame, 0);
    ask(m, MODERN, now_ns());
}

static void beat(struct member *m) {
    beats++;
    if (opt.modern) beat_modern(m, 0);
    else beat_classic(m);
}

static void leave(struct member *m) {
    m->synced = 0;
    if (opt.modern) {
        m->generation = -1; /* that is how a member of the new protocol says goodbye */
        beat_modern(m, 0);
        return;
    }
    begin(m, LEAVE, 1);
    put_string(&frame, m->id);
    ask(m, LEAVE, now_ns());
}

static void commit(struct member *m, int64_t due_ns) {
    begin(m, COMMIT, 7);
    put_int(&frame, m->generation, 4), put_string(&frame, m->id), put_int(&frame, -1, 2);
    put_int(&frame, 1, 4), put_string(&frame, opt.topic), put_int(&frame, 1, 4), put_int(&frame, 0, 4);
    put_int(&frame, ++offset, 8), put_int(&frame, -1, 4), put_int(&frame, -1, 2);
    ask(m, COMMIT, due_ns);
}

/* Hearing */

/* A coordinator that has just been made is not ready for every group at once. */
static int is_early(int error) { return LOADING <= error && error <= NOT_COORDINATOR; }

static void heard_join(struct member *m, struct cursor *c) {
    take_int(c, 4);
    int error = take_int(c, 2);
    m->generation = take_int(c, 4);
    take_string(c, NULL, 0), take_string(c, m->leader, sizeof m->leader), take_string(c, m->id, sizeof m->id);
    if (error == MEMBER_ID_REQUIRED || error == REBALANCE || is_early(error)) { join(m); return; }
    if (error) give_up("a join was refused", error);
    int count = take_int(c, 4);
    char (*ids)[NAME_MAX_BYTES] = calloc(count + 1, sizeof *ids);
    for (int i = 0; i < count; i++) {
        take_string(c, ids[i], sizeof *ids), take_string(c, NULL, 0);
        take(c, take_int(c, 4));
    }
    sync_with(m, ids, strcmp(m->id, m->leader) ? 0 : count);
    free(ids);
}

static void heard_sync(struct member *m, struct cursor *c) {
    take_int(c, 4);
    int error = take_int(c, 2);
    if (error == REBALANCE) { join(m); return; }
    if (error) give_up("a sync was refused", error);
    m->synced = 1;
}

static void heard_heartbeat(struct member *m, struct cursor *c) {
    take_int(c, 4);
    int error = take_int(c, 2);
    if (error == REBALANCE && m->synced) join(m);
    else if (error && error != REBALANCE && m->synced) give_up("a heartbeat was refused", error);
}

static int partitions_in(const uint8_t *from, const uint8_t *end) {
    struct cursor c = {from, end};
    int found = 0;
    for (uint32_t topics = take_uvarint(&c); topics > 1; topics--) {
        take(&c, 16);
        uint32_t count = take_uvarint(&c) - 1;
        take(&c, 4 * count);
        take_uvarint(&c);
        found += count;
    }
    return found;
}

static void heard_modern(struct member *m, struct cursor *c) {
    take_int(c, 4);
    int error = take_int(c, 2);
    take_compact_string(c, NULL, 0);
    if (is_early(error)) { beat_modern(m, 0); return; }
    if (error) give_up("a heartbeat was refused", error);
    take_compact_string(c, m->id, sizeof m->id);
    if (m->generation < 0) return; /* it has left */
    m->generation = take_int(c, 4);
    take_int(c, 4);
    if (take_int(c, 1) < 0) return;
    const uint8_t *from = c->at;
    for (uint32_t topics = take_uvarint(c); topics > 1; topics--) {
        take(c, 16);
        take(c, 4 * (take_uvarint(c) - 1));
        take_uvarint(c);
    }
    m->owned_bytes = c->at - from;
    memcpy(m->owned, from, m->owned_bytes);
    m->holds = partitions_in(from, c->at);
    m->synced = 1;
    beat_modern(m, 1); /* what was taken away is given up at once */
}

static void heard_commit(struct member *m, struct cursor *c, int64_t due_ns) {
    take_int(c, 4), take_int(c, 4), take_string(c, NULL, 0), take_int(c, 4), take_int(c, 4);
    int error = take_int(c, 2);
    if (error && !refused++) fprintf(stderr, "members: a commit of %s was refused: %d\n", m->id, error);
    took_ns[committed++] = now_ns() - due_ns;
}

static void heard(struct member *m, struct cursor *c) {
    take_int(c, 4);
    struct sent sent = m->queue[m->first++ % QUEUE];
    switch (sent.api) {
    case JOIN: heard_join(m, c); break;
    case SYNC: heard_sync(m, c); break;
    case HEARTBEAT: heard_heartbeat(m, c); break;
    case MODERN: take_uvarint(c), heard_modern(m, c); break;
    case COMMIT: heard_commit(m, c, sent.at_ns); break;
    case LEAVE: break;
    }
}

static void receive(struct member *m) {
    ssize_t n = recv(m->fd, m->reply + m->have, REPLY_BYTES_MAX - m->have, 0);
    if (n <= 0) die("the broker closed a connection");
    m->have += n;
    size_t used = 0;
    while (m->have - used >= 4) {
        struct cursor size = {m->reply + used, m->reply + m->have};
        size_t length = take_int(&size, 4);
        if (length + 4 > REPLY_BYTES_MAX) give_up("an answer is too long", length);
        if (m->have - used - 4 < length) break;
        struct cursor answer = {m->reply + used + 4, m->reply + used + 4 + length};
        used += 4 + length;
        heard(m, &answer);
    }
    memmove(m->reply, m->reply + used, m->have -= used);
}

#endif
