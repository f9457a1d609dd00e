/*
 * A load generator for AMQP 1.0 services with a transaction coordinator.
 *
 * One thread, one epoll, any number of connections. It writes its frames itself (the standard's types are in part 1,
 * frames in 2.3, performatives in 2.7, messages in part 3, transactions in part 4), so that a message costs it
 * about a microsecond and the service is what is measured.
 *
 *     load MODE --port N [options]          see usage()
 *
 * MODE      each transaction does                                    committed when
 * post      posts T messages to the target                           its discharge is accepted
 * retire    accepts T deliveries of the queue                        its discharge is accepted
 * transfer  accepts T deliveries of the queue, posts T to the target its discharge is accepted
 * mixed     even connections post T to the queue, odd ones accept T  its discharge is accepted; counted when accepted
 * fill      posts T settled messages to the target                   its discharge is accepted
 * plain     (no transaction) posts to the target                     accepted
 * check     (no transaction) accepts every check from the queue      sent
 * e2e       odd connections consume what the even ones post          delivered
 * idle      (no transaction) nothing; the connections are held       -
 *
 * Every connection keeps S transactions under way. Standard output has the lines "start" (warmed up, measuring), "end"
 * and one line of JSON; a fault has its reason on standard error and the exit status 2.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- what is asked for */

enum mode { POST, RETIRE, TRANSFER, MIXED, FILL, PLAIN, CHECK, E2E, IDLE, MODES };
static const char *const MODE_NAMES[MODES] = {"post", "retire",  "transfer", "mixed", "fill",
                                               "plain", "check", "e2e",      "idle"};

#define MAX_SLOTS 256
#define MAX_NAME 64

enum shape { BARE, DURABLE, JMS, SHAPES };
static const char *const SHAPE_NAMES[SHAPES] = {"bare", "durable", "jms"};

static struct {
    enum mode mode;
    const char *host;
    int port;
    int connections;
    int queues;        /* each pair of connections, or each connection, has one of them in turn */
    int transaction;   /* T: messages a transaction */
    int slots;         /* S: transactions under way on a connection */
    double seconds;    /* measured */
    double warm;       /* seconds before that */
    int body;          /* octets of a message's data */
    enum shape shape;  /* what a message has besides its body */
    bool settled;      /* posts and retirements are sent settled */
    bool single;       /* one disposition a delivery, never a range */
    bool checkable;    /* transactions have a producer group */
    bool sasl;         /* a SASL layer, mechanism ANONYMOUS (5.3) */
    double rate;       /* plain, e2e: messages a second over all connections; 0: as fast as it goes */
    uint32_t window;   /* credit of a consuming link; 0: by T and S */
    uint64_t messages; /* fill: how many; others: end when so many are committed; 0: no limit */
    uint64_t backlog;  /* mixed: most messages that are posted, or being posted, and not accepted yet */
    double stall;      /* seconds without a commit that are a fault */
    const char *queue;
    const char *target;
} options = {
    .host = "127.0.0.1",
    .connections = 1,
    .queues = 1,
    .transaction = 1,
    .slots = 8,
    .seconds = 3,
    .warm = 1,
    .body = 256,
    .shape = DURABLE,
    .backlog = 20000,
    .stall = 15,
    .queue = "A",
    .target = "B",
};

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory == NULL)
        fail("no memory for %zu octets", count * size);
    return memory;
}

static uint64_t nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---------------------------------------------------------------- what is measured */

#define LATENCIES (1u << 22) /* one counter a microsecond; the last one counts all that is longer (4.2 s) */

static uint64_t committed;
static uint64_t begun; /* messages of all transactions declared */
static uint64_t waiting; /* mixed: messages of posting transactions declared, less those accepted */
static bool measuring;
static uint64_t *latencies;
static uint64_t latency_count;

static void count_latency(uint64_t ns) {
    uint64_t us = (ns + 500) / 1000;
    if (!measuring)
        return;
    latencies[us < LATENCIES ? us : LATENCIES - 1]++;
    latency_count++;
}

/* The latency in microseconds that `share` of all were not above. */
static double latency_at(double share) {
    uint64_t wanted = (uint64_t)((double)latency_count * share);
    uint64_t seen = 0;
    for (uint32_t us = 0; us < LATENCIES; us++) {
        seen += latencies[us];
        if (seen > wanted)
            return us;
    }
    return 0;
}

/* ---------------------------------------------------------------- a connection */

/* The three links of a connection; the number is also our handle. */
enum { CONTROL, POSTING, CONSUMING, LINKS };
static const char *const LINK_NAMES[LINKS] = {"control", "posting", "consuming"};

/* What a delivery of ours was, to know its answer by the delivery-id. */
enum sent_kind { ANSWERED, DECLARE, DISCHARGE, MESSAGE };

struct sent {
    uint8_t kind;
    uint8_t slot;
    uint64_t due_at; /* plain: when it was to be posted */
};

enum slot_state { FREE, DECLARING, WORKING, DISCHARGING };

struct slot {
    enum slot_state state;
    uint8_t txn_id[64]; /* 4.5.4 allows 32 octets; Artemis sends 36 */
    uint8_t txn_id_length;
    int unposted;  /* messages still to post */
    int unretired; /* deliveries still to accept */
    uint64_t discharged_at;
};

enum phase { SASL, OPENING, OPEN, CLOSING, CLOSED };

struct connection {
    int fd;
    int number;
    enum phase phase;
    bool waits_for_room; /* the socket is full, epoll tells when it is not */
    bool consumes;
    bool posts;

    uint8_t *in;
    uint32_t in_length;
    uint8_t *out;
    uint32_t out_sent;
    uint32_t out_length;
    uint32_t out_capacity;
    uint64_t last_sent_at;
    uint32_t idle_timeout_ms; /* of the peer (2.4.5); 0: none */
    uint32_t peer_max_frame;

    /* The session (2.5.6). We send every delivery as one transfer, so our delivery-ids are our transfer-ids. */
    uint32_t next_outgoing_id;
    uint32_t next_incoming_id;
    uint32_t remote_incoming_window;

    bool attached[LINKS];
    uint32_t credit[LINKS];
    uint32_t delivery_count[LINKS];
    uint32_t link_of_handle[8]; /* the peer's handle, to our link */

    struct sent *sent; /* ring, by delivery-id */
    struct slot slots[MAX_SLOTS];
    int under_way; /* plain: posts without an answer */
    uint64_t next_at; /* paced: when the next transaction or post is due */

    uint32_t *arrived; /* ring: delivery-ids that are in nobody's hands yet */
    uint32_t arrived_head;
    uint32_t arrived_tail;
    uint32_t arriving; /* delivery-id of the delivery whose frames are coming */
    bool partial;
    uint64_t delivered; /* while it was measured */
    uint32_t ack_first; /* e2e: a range to accept */
    uint32_t ack_last;
    uint32_t ack_count;
};

static struct connection **connections;
static int epoll_fd;
static uint32_t sent_mask;
static uint32_t arrived_mask;
static uint8_t *body_octets;

#define IN_CAPACITY (1u << 20) /* also our max-frame-size */
#define IDLE_IN_CAPACITY 4096u

static uint32_t in_capacity(void) {
    return options.mode == IDLE ? IDLE_IN_CAPACITY : IN_CAPACITY;
}

/* ---------------------------------------------------------------- writing: types (1.6) */

/* Lists are list8: at most 255 octets and 255 values, which all of ours are. */
struct writer {
    struct connection *connection;
    uint8_t *start;
    uint8_t *at;
    uint8_t *lists[8]; /* [0] is no list: values outside of all lists count there */
    int depth;
    uint8_t outside[2];
};

static void put_u32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

static uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void count_value(struct writer *w) {
    w->lists[w->depth][1]++;
}

static void write_octets(struct writer *w, const void *octets, uint32_t length) {
    memcpy(w->at, octets, length);
    w->at += length;
}

static void write_null(struct writer *w) {
    *w->at++ = 0x40;
    count_value(w);
}

static void write_nulls(struct writer *w, int count) {
    while (count-- > 0)
        write_null(w);
}

static void write_bool(struct writer *w, bool value) {
    *w->at++ = value ? 0x41 : 0x42;
    count_value(w);
}

static void write_ubyte(struct writer *w, uint8_t value) {
    *w->at++ = 0x50;
    *w->at++ = value;
    count_value(w);
}

static void write_uint(struct writer *w, uint32_t value) {
    if (value == 0) {
        *w->at++ = 0x43;
    } else if (value < 256) {
        *w->at++ = 0x52;
        *w->at++ = (uint8_t)value;
    } else {
        *w->at++ = 0x70;
        put_u32(w->at, value);
        w->at += 4;
    }
    count_value(w);
}

static void write_short(struct writer *w, uint8_t code, const void *octets, uint8_t length) {
    *w->at++ = code;
    *w->at++ = length;
    write_octets(w, octets, length);
    count_value(w);
}

static void write_string(struct writer *w, const char *text) {
    write_short(w, 0xa1, text, (uint8_t)strlen(text));
}

static void write_symbol(struct writer *w, const char *text) {
    write_short(w, 0xa3, text, (uint8_t)strlen(text));
}

static void write_binary(struct writer *w, const void *octets, uint8_t length) {
    write_short(w, 0xa0, octets, length);
}

/* A described value: descriptor as smallulong; the value itself follows and is what counts. */
static void write_descriptor(struct writer *w, uint8_t code) {
    *w->at++ = 0x00;
    *w->at++ = 0x53;
    *w->at++ = code;
}

static void begin_list(struct writer *w) {
    count_value(w);
    *w->at++ = 0xc0;
    w->lists[++w->depth] = w->at;
    w->at[1] = 0;
    w->at += 2;
}

static void end_list(struct writer *w) {
    uint8_t *list = w->lists[w->depth--];
    list[0] = (uint8_t)(w->at - list - 1);
}

static void write_empty_list(struct writer *w) {
    *w->at++ = 0x45;
    count_value(w);
}

/* ---------------------------------------------------------------- writing: frames (2.3) */

enum {
    OPEN_CODE = 0x10,
    BEGIN_CODE = 0x11,
    ATTACH_CODE = 0x12,
    FLOW_CODE = 0x13,
    TRANSFER_CODE = 0x14,
    DISPOSITION_CODE = 0x15,
    DETACH_CODE = 0x16,
    END_CODE = 0x17,
    CLOSE_CODE = 0x18,
    ERROR_CODE = 0x1d,
    ACCEPTED_CODE = 0x24,
    REJECTED_CODE = 0x25,
    SOURCE_CODE = 0x28,
    TARGET_CODE = 0x29,
    COORDINATOR_CODE = 0x30,
    DECLARE_CODE = 0x31,
    DISCHARGE_CODE = 0x32,
    DECLARED_CODE = 0x33,
    TRANSACTIONAL_CODE = 0x34,
    SASL_INIT_CODE = 0x41,
    SASL_OUTCOME_CODE = 0x44,
    HEADER_CODE = 0x70,
    ANNOTATIONS_CODE = 0x72,
    PROPERTIES_CODE = 0x73,
    APPLICATION_CODE = 0x74,
    DATA_CODE = 0x75,
    VALUE_CODE = 0x77,
};

static const uint8_t AMQP_HEADER[8] = {'A', 'M', 'Q', 'P', 0, 1, 0, 0};
static const uint8_t SASL_HEADER[8] = {'A', 'M', 'Q', 'P', 3, 1, 0, 0};

static void reserve(struct connection *c, uint32_t octets) {
    if (c->out_length + octets <= c->out_capacity)
        return;
    c->out_capacity = (c->out_length + octets) * 2;
    c->out = realloc(c->out, c->out_capacity);
    if (c->out == NULL)
        fail("no memory for %u octets of output", c->out_capacity);
}

static void write_header(struct connection *c, const uint8_t *header) {
    reserve(c, 8);
    memcpy(c->out + c->out_length, header, 8);
    c->out_length += 8;
}

/* A frame on channel 0: size, data offset 2, type (0 AMQP, 1 SASL), channel; then the performative's list is begun. */
static void begin_frame(struct writer *w, struct connection *c, uint8_t type, uint8_t code) {
    reserve(c, 1024 + (uint32_t)options.body);
    w->connection = c;
    w->depth = 0;
    w->lists[0] = w->outside;
    w->outside[1] = 0;
    w->start = c->out + c->out_length;
    w->start[4] = 2;
    w->start[5] = type;
    w->start[6] = 0;
    w->start[7] = 0;
    w->at = w->start + 8;
    write_descriptor(w, code);
    begin_list(w);
}

static void end_frame(struct writer *w) {
    uint32_t size = (uint32_t)(w->at - w->start);
    put_u32(w->start, size);
    w->connection->out_length += size;
}

/* Only a header: keeps the peer's idle timeout from running out (2.4.5). */
static void write_empty_frame(struct connection *c) {
    static const uint8_t EMPTY[8] = {0, 0, 0, 8, 2, 0, 0, 0};
    write_header(c, EMPTY);
}

/* 5.3.3.2 */
static void write_sasl_init(struct connection *c) {
    struct writer w;
    write_header(c, SASL_HEADER);
    begin_frame(&w, c, 1, SASL_INIT_CODE);
    write_symbol(&w, "ANONYMOUS");
    end_list(&w);
    end_frame(&w);
}

/* 2.7.1 */
static void write_open(struct connection *c) {
    struct writer w;
    char container[40];
    snprintf(container, sizeof container, "load-%d-%d", (int)getpid(), c->number);
    begin_frame(&w, c, 0, OPEN_CODE);
    write_string(&w, container);
    write_string(&w, options.host);
    write_uint(&w, in_capacity());
    if (options.checkable) {
        /* properties: the producer group of its transactions */
        static const char properties[] = "\xc1\x23\x02\xa3\x1a" "coordinator:producer-group" "\xa1\x04" "load";
        write_nulls(&w, 6);
        write_octets(&w, (const uint8_t *)properties, sizeof properties - 1);
        count_value(&w);
    }
    end_list(&w);
    end_frame(&w);
}

#define OUR_WINDOW 0x7fffffffu /* transfers we are ready to take, always */

/* 2.7.2 */
static void write_begin(struct connection *c) {
    struct writer w;
    begin_frame(&w, c, 0, BEGIN_CODE);
    write_null(&w);                /* remote-channel */
    write_uint(&w, 0);             /* next-outgoing-id */
    write_uint(&w, OUR_WINDOW);    /* incoming-window */
    write_uint(&w, OUR_WINDOW);    /* outgoing-window */
    end_list(&w);
    end_frame(&w);
}

/* Whether even connections post what odd ones consume. */
static bool in_pairs(void) {
    return options.mode == E2E || options.mode == MIXED;
}

/* Where a connection consumes from or posts to. */
static const char *queue_of(const struct connection *c, const char *name) {
    static char numbered[MAX_NAME + 16];
    if (options.queues == 1)
        return name;
    snprintf(numbered, sizeof numbered, "%s-%d", name, (in_pairs() ? c->number / 2 : c->number) % options.queues);
    return numbered;
}

/* 2.7.3; source 3.5.3, target 3.5.4, coordinator 4.5.1 */
static void write_attach(struct connection *c, int link) {
    struct writer w;
    bool receiver = link == CONSUMING;
    begin_frame(&w, c, 0, ATTACH_CODE);
    write_string(&w, LINK_NAMES[link]);
    write_uint(&w, (uint32_t)link); /* handle */
    write_bool(&w, receiver);       /* role */
    write_ubyte(&w, link == POSTING && options.settled ? 1 : 0); /* snd-settle-mode: settled, or unsettled */
    write_ubyte(&w, 0);             /* rcv-settle-mode: first */
    write_descriptor(&w, SOURCE_CODE);
    if (receiver) {
        begin_list(&w);
        write_string(&w, queue_of(c, options.queue));
        write_nulls(&w, 9); /* durable, expiry-policy, timeout, dynamic, its properties, mode, filter, outcomes */
        write_symbol(&w, "queue");
        end_list(&w);
    } else {
        write_empty_list(&w);
    }
    if (link == CONTROL) {
        write_descriptor(&w, COORDINATOR_CODE);
        write_empty_list(&w);
    } else {
        write_descriptor(&w, TARGET_CODE);
        if (link == POSTING) {
            begin_list(&w);
            write_string(&w, queue_of(c, in_pairs() ? options.queue : options.target));
            write_nulls(&w, 5); /* durable, expiry-policy, timeout, dynamic, its properties */
            write_symbol(&w, "queue");
            end_list(&w);
        } else {
            write_empty_list(&w);
        }
    }
    if (!receiver) {
        write_nulls(&w, 2); /* unsettled, incomplete-unsettled */
        write_uint(&w, 0);  /* initial-delivery-count */
    }
    end_list(&w);
    end_frame(&w);
}

/* The session's part of a flow (2.7.4). */
static void begin_flow(struct writer *w, struct connection *c) {
    begin_frame(w, c, 0, FLOW_CODE);
    write_uint(w, c->next_incoming_id);
    write_uint(w, OUR_WINDOW);
    write_uint(w, c->next_outgoing_id);
    write_uint(w, OUR_WINDOW);
}

static void write_session_flow(struct connection *c) {
    struct writer w;
    begin_flow(&w, c);
    end_list(&w);
    end_frame(&w);
}

/* Credit for what the window has room for: what arrived and is in nobody's hands takes its place (2.6.7). */
static void write_credit(struct connection *c) {
    struct writer w;
    c->credit[CONSUMING] = options.window - (c->arrived_tail - c->arrived_head);
    begin_flow(&w, c);
    write_uint(&w, CONSUMING);
    write_uint(&w, c->delivery_count[CONSUMING]);
    write_uint(&w, c->credit[CONSUMING]);
    end_list(&w);
    end_frame(&w);
}

/* A transfer (2.7.5) up to its settled field; the delivery-tag is the delivery-id. */
static void begin_transfer(struct writer *w, struct connection *c, int link, enum sent_kind kind, int slot,
                           bool settled) {
    uint32_t id = c->next_outgoing_id++;
    struct sent *sent = &c->sent[id & sent_mask];
    uint8_t tag[4];
    if (sent->kind == DECLARE || sent->kind == DISCHARGE)
        fail("a declare or discharge has no answer after %u later deliveries", sent_mask + 1);
    sent->kind = kind;
    sent->slot = (uint8_t)slot;
    c->delivery_count[link]++;
    c->credit[link]--;
    c->remote_incoming_window--;
    put_u32(tag, id);
    begin_frame(w, c, 0, TRANSFER_CODE);
    write_uint(w, (uint32_t)link);
    write_uint(w, id);
    write_binary(w, tag, sizeof tag);
    write_uint(w, 0); /* message-format */
    write_bool(w, settled);
}

static void write_durable_header(struct writer *w) {
    write_descriptor(w, HEADER_CODE);
    begin_list(w);
    write_bool(w, true);
    end_list(w);
}

/* As many a client sends: a durable header, an annotation, properties, two application properties. */
static void write_durable_head(struct writer *w) {
    static const char annotations[] = "\xc1\x16\x02\xa3\x0cx-opt-origin\xa1\x05" "bench";
    static const char application[] = "\xc1\x18\x04\xa1\x04kind\xa1\x05order\xa1\x06number\x55\x07";
    static uint32_t number;
    write_durable_header(w);
    write_descriptor(w, ANNOTATIONS_CODE);
    write_octets(w, (const uint8_t *)annotations, sizeof annotations - 1);
    write_descriptor(w, PROPERTIES_CODE);
    begin_list(w);
    write_uint(w, ++number);         /* message-id */
    write_null(w);                   /* user-id */
    write_string(w, options.target); /* to */
    end_list(w);
    write_descriptor(w, APPLICATION_CODE);
    write_octets(w, (const uint8_t *)application, sizeof application - 1);
}

/* As Qpid JMS 2.10 sends a persistent TextMessage. */
static void write_jms_head(struct writer *w) {
    static const char annotations[] = "\xc1\x29\x04\xa3\x0ex-opt-jms-dest\x51\x00\xa3\x12x-opt-jms-msg-type\x51\x05";
    static uint64_t number;
    char id[64];
    uint64_t created = 1790000000000ull + ++number;
    write_durable_header(w);
    write_descriptor(w, ANNOTATIONS_CODE);
    write_octets(w, (const uint8_t *)annotations, sizeof annotations - 1);
    write_descriptor(w, PROPERTIES_CODE);
    begin_list(w);
    snprintf(id, sizeof id, "ID:5870cfb3-6e32-4cb4-a568-41a855638125:1:1:1-%llu", (unsigned long long)number);
    write_string(w, id);             /* message-id */
    write_null(w);                   /* user-id */
    write_string(w, options.target); /* to */
    write_nulls(w, 6);               /* subject to absolute-expiry-time */
    count_value(w);
    *w->at++ = 0x83; /* creation-time */
    put_u32(w->at, (uint32_t)(created >> 32));
    put_u32(w->at + 4, (uint32_t)created);
    w->at += 8;
    end_list(w);
}

static void write_message(struct writer *w) {
    uint64_t time;
    if (options.shape == DURABLE)
        write_durable_head(w);
    else if (options.shape == JMS)
        write_jms_head(w);
    write_descriptor(w, options.shape == JMS ? VALUE_CODE : DATA_CODE);
    *w->at++ = options.shape == JMS ? 0xb1 : 0xb0;
    put_u32(w->at, (uint32_t)options.body);
    w->at += 4;
    if (options.mode == E2E) { /* when it was posted, for whoever consumes it */
        time = nanoseconds();
        memcpy(body_octets, &time, sizeof time);
    }
    write_octets(w, body_octets, (uint32_t)options.body);
}

/* 4.5.8; without an outcome on a post, with accepted on a retirement. */
static void write_transactional_state(struct writer *w, const struct slot *slot, bool accepted) {
    write_descriptor(w, TRANSACTIONAL_CODE);
    begin_list(w);
    write_binary(w, slot->txn_id, slot->txn_id_length);
    if (accepted) {
        write_descriptor(w, ACCEPTED_CODE);
        write_empty_list(w);
    }
    end_list(w);
}

/* 4.2, 4.5.5 */
static void declare(struct connection *c, int number) {
    struct slot *slot = &c->slots[number];
    struct writer w;
    begin_transfer(&w, c, CONTROL, DECLARE, number, false);
    end_list(&w);
    write_descriptor(&w, VALUE_CODE);
    write_descriptor(&w, DECLARE_CODE);
    write_empty_list(&w);
    end_frame(&w);
    slot->state = DECLARING;
    begun += (uint64_t)options.transaction;
}

/* 4.3, 4.5.6 */
static void discharge(struct connection *c, int number) {
    struct slot *slot = &c->slots[number];
    struct writer w;
    begin_transfer(&w, c, CONTROL, DISCHARGE, number, false);
    end_list(&w);
    write_descriptor(&w, VALUE_CODE);
    write_descriptor(&w, DISCHARGE_CODE);
    begin_list(&w);
    write_binary(&w, slot->txn_id, slot->txn_id_length);
    write_bool(&w, false); /* fail */
    end_list(&w);
    end_frame(&w);
    slot->state = DISCHARGING;
    slot->discharged_at = nanoseconds();
}

/* 4.4.1 */
static void post_in_transaction(struct connection *c, int number) {
    struct writer w;
    begin_transfer(&w, c, POSTING, MESSAGE, number, options.settled);
    write_nulls(&w, 2); /* more, rcv-settle-mode */
    write_transactional_state(&w, &c->slots[number], false);
    end_list(&w);
    write_message(&w);
    end_frame(&w);
}

static void post_plain(struct connection *c) {
    struct writer w;
    begin_transfer(&w, c, POSTING, MESSAGE, 0, options.settled);
    end_list(&w);
    write_message(&w);
    end_frame(&w);
}

/* 2.7.6; accepts deliveries first to last, in the slot's transaction (4.4.2) or, without a slot, at once. */
static void write_disposition(struct connection *c, uint32_t first, uint32_t last, const struct slot *slot) {
    struct writer w;
    begin_frame(&w, c, 0, DISPOSITION_CODE);
    write_bool(&w, true); /* role: receiver */
    write_uint(&w, first);
    if (first == last)
        write_null(&w);
    else
        write_uint(&w, last);
    write_bool(&w, slot == NULL || options.settled);
    if (slot != NULL) {
        write_transactional_state(&w, slot, true);
    } else {
        write_descriptor(&w, ACCEPTED_CODE);
        write_empty_list(&w);
    }
    end_list(&w);
    end_frame(&w);
}

static void write_close(struct connection *c) {
    struct writer w;
    begin_frame(&w, c, 0, CLOSE_CODE);
    end_list(&w);
    end_frame(&w);
}

/* Whether a connection has this link. */
static bool uses(const struct connection *c, int link) {
    if (link == CONSUMING)
        return c->consumes;
    if (link == POSTING)
        return c->posts;
    return options.mode == RETIRE || options.mode == MIXED ||
           (c->posts && options.mode != PLAIN && options.mode != CHECK && options.mode != IDLE);
}

/* Everything up to the attaches goes out at once (2.4.1 allows it); credit waits for the peer's attach. */
static void introduce(struct connection *c) {
    write_header(c, AMQP_HEADER);
    write_open(c);
    write_begin(c);
    for (int link = 0; link < LINKS; link++)
        if (uses(c, link))
            write_attach(c, link);
    c->phase = OPENING;
}

/* ---------------------------------------------------------------- the work */

static bool more_wanted(void) {
    /* mixed counts what is accepted, and begins as many posts besides */
    return options.messages == 0 || options.mode == MIXED || begun < options.messages;
}

static bool can_send(const struct connection *c, int link) {
    return c->credit[link] > 0 && c->remote_incoming_window > 0;
}

/* Accepts a transaction's deliveries, once enough have arrived. */
static bool retire(struct connection *c, struct slot *slot) {
    uint32_t count = (uint32_t)options.transaction;
    uint32_t first;
    uint32_t last;
    if (c->arrived_tail - c->arrived_head < count)
        return false;
    first = c->arrived[c->arrived_head & arrived_mask];
    last = c->arrived[(c->arrived_head + count - 1) & arrived_mask];
    if (options.single || last - first != count - 1) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t id = c->arrived[(c->arrived_head + i) & arrived_mask];
            write_disposition(c, id, id, slot);
        }
    } else {
        write_disposition(c, first, last, slot);
    }
    c->arrived_head += count;
    slot->unretired = 0;
    if (c->credit[CONSUMING] + (c->arrived_tail - c->arrived_head) <= options.window / 2)
        write_credit(c);
    return true;
}

static void work_transactions(struct connection *c) {
    for (int number = 0; number < options.slots; number++) {
        struct slot *slot = &c->slots[number];
        if (slot->state == FREE && more_wanted() && can_send(c, CONTROL)) {
            if (options.mode == E2E && options.rate > 0) {
                if (nanoseconds() < c->next_at)
                    continue;
                c->next_at += (uint64_t)(1e9 * (options.connections / 2) * options.transaction / options.rate);
            }
            if (options.mode == MIXED && c->posts) {
                if (waiting >= options.backlog)
                    continue;
                waiting += (uint64_t)options.transaction;
            }
            declare(c, number);
        }
        if (slot->state != WORKING)
            continue;
        if (slot->unretired > 0 && !retire(c, slot))
            continue;
        while (slot->unposted > 0 && can_send(c, POSTING)) {
            post_in_transaction(c, number);
            slot->unposted--;
        }
        if (slot->unposted == 0 && can_send(c, CONTROL))
            discharge(c, number);
    }
}

/* Paced, a post that could not go out in time has waited since: it counts from then (no coordinated omission). */
static void work_plain(struct connection *c) {
    int bound = options.transaction * options.slots;
    while (c->under_way < bound && can_send(c, POSTING) && c->out_length - c->out_sent < IN_CAPACITY) {
        uint64_t due_at = nanoseconds();
        if (options.rate > 0) {
            if (due_at < c->next_at)
                return;
            due_at = c->next_at;
            c->next_at += (uint64_t)(1e9 * options.connections / options.rate);
        }
        c->sent[c->next_outgoing_id & sent_mask].due_at = due_at;
        post_plain(c);
        if (options.settled)
            committed++;
        else
            c->under_way++;
    }
}

/* Does all that can be done on a connection now. */
static void work(struct connection *c) {
    if (c->phase != OPEN || options.mode == IDLE)
        return;
    if (options.mode == PLAIN)
        work_plain(c);
    else if (uses(c, CONTROL))
        work_transactions(c);
}

static void declared(const struct connection *c, struct slot *slot, const uint8_t *txn_id, uint32_t length) {
    if (slot->state != DECLARING)
        fail("declared came for a transaction in state %d", slot->state);
    if (length < 1 || length > sizeof slot->txn_id)
        fail("a txn-id of %u octets: 1 to %zu were expected", length, sizeof slot->txn_id);
    memcpy(slot->txn_id, txn_id, length);
    slot->txn_id_length = (uint8_t)length;
    slot->state = WORKING;
    slot->unposted = c->posts ? options.transaction : 0;
    slot->unretired = c->consumes ? options.transaction : 0;
}

static void discharged(const struct connection *c, struct slot *slot) {
    if (slot->state != DISCHARGING)
        fail("a discharge was answered for a transaction in state %d", slot->state);
    slot->state = FREE;
    if (options.mode == E2E) /* counted where it is delivered */
        return;
    count_latency(nanoseconds() - slot->discharged_at);
    if (options.mode == MIXED) {
        if (c->posts) /* counted where it is accepted */
            return;
        waiting -= (uint64_t)options.transaction;
    }
    committed += (uint64_t)options.transaction;
}

/* ---------------------------------------------------------------- reading: types (1.6) */

enum value_kind { ABSENT, NUMBER, OCTETS, LIST, DESCRIBED, OTHER };

struct value {
    enum value_kind kind;
    uint64_t number;      /* number, boolean; of a described value its descriptor's code; of a list its count */
    const uint8_t *start; /* octets; a list's first value; a described value itself */
    const uint8_t *end;
};

static void need(const uint8_t *at, const uint8_t *end, uint64_t octets) {
    if ((uint64_t)(end - at) < octets)
        fail("a value runs over the end of its frame");
}

static uint64_t get_number(const uint8_t *at, int width) {
    uint64_t number = 0;
    for (int i = 0; i < width; i++)
        number = number << 8 | at[i];
    return number;
}

/* Reads one value; returns where the next one starts. Codes: high half gives the width (1.6, figure 1.2). */
static const uint8_t *read_value(const uint8_t *at, const uint8_t *end, struct value *value) {
    uint8_t code;
    int width;
    need(at, end, 1);
    code = *at++;
    value->kind = OTHER;
    value->number = 0;
    value->start = at;
    value->end = at;
    switch (code >> 4) {
    case 0x0: { /* described */
        struct value descriptor;
        struct value described;
        const uint8_t *next;
        if (code != 0x00)
            break;
        at = read_value(at, end, &descriptor);
        if (descriptor.kind != NUMBER)
            fail("a descriptor that is no number");
        value->kind = DESCRIBED;
        value->number = descriptor.number;
        value->start = at;
        next = read_value(at, end, &described);
        value->end = next;
        return next;
    }
    case 0x4: /* no octets */
        value->kind = code == 0x40 ? ABSENT : code == 0x45 ? LIST : NUMBER;
        value->number = code == 0x41;
        return at;
    case 0x5: /* 1, 2, 4, 8 and 16 octets */
    case 0x6:
    case 0x7:
    case 0x8:
    case 0x9:
        width = 1 << ((code >> 4) - 5);
        need(at, end, (uint64_t)width);
        if (width <= 8) {
            value->kind = NUMBER;
            value->number = get_number(at, width);
        }
        return at + width;
    case 0xa: /* octets with their length in 1 or 4 octets */
    case 0xb:
    case 0xc: /* a compound with its size in 1 or 4 octets, then its count */
    case 0xd:
    case 0xe: /* an array, likewise */
    case 0xf: {
        uint64_t size;
        width = (code >> 4) & 1 ? 4 : 1;
        need(at, end, (uint64_t)width);
        size = get_number(at, width);
        at += width;
        need(at, end, size);
        value->start = at;
        value->end = at + size;
        if (code >> 4 <= 0xb) {
            value->kind = OCTETS;
        } else if (code == 0xc0 || code == 0xd0) {
            need(at, value->end, (uint64_t)width);
            value->kind = LIST;
            value->number = get_number(at, width);
            value->start = at + width;
        }
        return value->end;
    }
    }
    fail("a value of unknown type 0x%02x", code);
}

/* Reads a list's first `wanted` values; those it does not have are absent. Returns where the list ends. */
static const uint8_t *read_list(const uint8_t *at, const uint8_t *end, struct value *fields, uint32_t wanted) {
    struct value list;
    const uint8_t *next = read_value(at, end, &list);
    if (list.kind != LIST)
        fail("a list was expected");
    at = list.start;
    for (uint32_t i = 0; i < wanted; i++) {
        if (i < list.number)
            at = read_value(at, list.end, &fields[i]);
        else
            fields[i] = (struct value){.kind = ABSENT};
    }
    return next;
}

static int printable_length(const struct value *value) {
    int64_t length = value->end - value->start;
    return value->kind != OCTETS ? 0 : length > 500 ? 500 : (int)length;
}

/* An error (2.8.14), from the field that has it. */
static __attribute__((noreturn)) void fail_with_error(const char *what, const struct value *error) {
    struct value fields[2];
    if (error->kind != DESCRIBED || error->number != ERROR_CODE)
        fail("%s without an error", what);
    read_list(error->start, error->end, fields, 2);
    fail("%s: %.*s: %.*s", what, printable_length(&fields[0]), (const char *)fields[0].start,
         printable_length(&fields[1]), (const char *)fields[1].start);
}

/* An outcome that is not the one expected. */
static __attribute__((noreturn)) void fail_with_outcome(const char *what, const struct value *outcome) {
    struct value error;
    char text[60];
    if (outcome->kind == DESCRIBED && outcome->number == REJECTED_CODE) {
        read_list(outcome->start, outcome->end, &error, 1);
        snprintf(text, sizeof text, "%s was rejected", what);
        fail_with_error(text, &error);
    }
    if (outcome->kind == DESCRIBED)
        fail("%s has the state 0x%02x", what, (unsigned)outcome->number);
    fail("%s was settled without an outcome", what);
}

/* ---------------------------------------------------------------- reading: frames */

static uint32_t link_of(const struct connection *c, const struct value *handle) {
    if (handle->number >= 8 || c->link_of_handle[handle->number] >= LINKS)
        fail("a handle (%u) that was not attached", (unsigned)handle->number);
    return c->link_of_handle[handle->number];
}

static void on_open(struct connection *c, const uint8_t *at, const uint8_t *end) {
    struct value fields[5]; /* container-id, hostname, max-frame-size, channel-max, idle-time-out */
    read_list(at, end, fields, 5);
    if (fields[2].kind == NUMBER)
        c->peer_max_frame = (uint32_t)fields[2].number;
    if (fields[4].kind == NUMBER)
        c->idle_timeout_ms = (uint32_t)fields[4].number;
    if ((uint64_t)options.body + 400 > c->peer_max_frame)
        fail("a body of %d octets does not fit into one frame of the peer (%u)", options.body, c->peer_max_frame);
}

static void on_begin(struct connection *c, const uint8_t *at, const uint8_t *end) {
    struct value fields[4]; /* remote-channel, next-outgoing-id, incoming-window, outgoing-window */
    read_list(at, end, fields, 4);
    c->next_incoming_id = (uint32_t)fields[1].number;
    c->remote_incoming_window = (uint32_t)fields[2].number;
}

static void on_attach(struct connection *c, const uint8_t *at, const uint8_t *end) {
    /* name, handle, role, two modes, source, target, two of unsettled, initial-delivery-count */
    struct value fields[10];
    uint32_t link;
    read_list(at, end, fields, 10);
    for (link = 0; link < LINKS; link++) {
        size_t length = strlen(LINK_NAMES[link]);
        if (fields[0].kind == OCTETS && (size_t)(fields[0].end - fields[0].start) == length &&
            memcmp(fields[0].start, LINK_NAMES[link], length) == 0)
            break;
    }
    if (link == LINKS || fields[1].number >= 8)
        fail("an attach that answers none of ours");
    c->link_of_handle[fields[1].number] = link;
    if (fields[link == CONSUMING ? 5 : 6].kind == ABSENT)
        return; /* refused: the detach that follows has the reason (2.6.3) */
    c->attached[link] = true;
    if (link == CONSUMING) {
        c->delivery_count[CONSUMING] = (uint32_t)fields[9].number;
        write_credit(c);
    }
    for (link = 0; link < LINKS; link++)
        if (uses(c, (int)link) && !c->attached[link])
            return;
    c->phase = OPEN;
}

static void on_flow(struct connection *c, const uint8_t *at, const uint8_t *end) {
    /* next-incoming-id, incoming-window, next-outgoing-id, outgoing-window, handle, delivery-count, link-credit,
       available, drain, echo */
    struct value fields[10];
    read_list(at, end, fields, 10);
    c->remote_incoming_window = (uint32_t)(fields[0].number + fields[1].number) - c->next_outgoing_id;
    if (fields[4].kind == NUMBER) {
        uint32_t link = link_of(c, &fields[4]);
        if (link != CONSUMING)
            c->credit[link] = (uint32_t)(fields[5].number + fields[6].number) - c->delivery_count[link];
    }
    if (fields[9].kind == NUMBER && fields[9].number)
        write_session_flow(c);
}

/* The time that the data section starts with. */
static uint64_t posted_at(const uint8_t *at, const uint8_t *end) {
    uint64_t time;
    while (at < end) {
        struct value section;
        struct value octets;
        at = read_value(at, end, &section);
        if (section.kind != DESCRIBED || section.number != DATA_CODE)
            continue;
        read_value(section.start, section.end, &octets);
        need(octets.start, octets.end, sizeof time);
        memcpy(&time, octets.start, sizeof time);
        return time;
    }
    fail("a delivery without a data section");
}

static void acknowledge(struct connection *c) {
    if (c->ack_count == 0)
        return;
    write_disposition(c, c->ack_first, c->ack_last, NULL);
    c->ack_count = 0;
    if (c->credit[CONSUMING] < options.window / 2)
        write_credit(c);
}

static void on_transfer(struct connection *c, const uint8_t *at, const uint8_t *end) {
    struct value fields[6]; /* handle, delivery-id, delivery-tag, message-format, settled, more */
    const uint8_t *payload = read_list(at, end, fields, 6);
    c->next_incoming_id++;
    if (!c->partial) {
        c->arriving = (uint32_t)fields[1].number;
        if (options.mode == E2E)
            count_latency(nanoseconds() - posted_at(payload, end));
    }
    c->partial = fields[5].kind == NUMBER && fields[5].number;
    if (c->partial)
        return;
    c->delivery_count[CONSUMING]++;
    c->credit[CONSUMING]--;
    c->delivered += measuring;
    if (options.mode == E2E || options.mode == CHECK) {
        committed++;
        if (c->ack_count > 0 && c->arriving != c->ack_last + 1)
            acknowledge(c);
        if (c->ack_count++ == 0)
            c->ack_first = c->arriving;
        c->ack_last = c->arriving;
        return;
    }
    if (c->arrived_tail - c->arrived_head > arrived_mask)
        fail("more deliveries than there was credit for");
    c->arrived[c->arrived_tail++ & arrived_mask] = c->arriving;
}

static void on_disposition(struct connection *c, const uint8_t *at, const uint8_t *end) {
    struct value fields[5]; /* role, first, last, settled, state */
    struct value *state = &fields[4];
    struct value inner[2] = {{.kind = ABSENT}, {.kind = ABSENT}};
    uint32_t first;
    uint32_t last;
    uint64_t outcome;
    read_list(at, end, fields, 5);
    if (fields[0].number == 0)
        return; /* about deliveries to us: we settle by our own rule */
    first = (uint32_t)fields[1].number;
    last = fields[2].kind == NUMBER ? (uint32_t)fields[2].number : first;
    outcome = state->kind == DESCRIBED ? state->number : 0;
    if (outcome == DECLARED_CODE || outcome == TRANSACTIONAL_CODE)
        read_list(state->start, state->end, inner, 2);
    for (uint32_t id = first; id != last + 1; id++) {
        struct sent *sent = &c->sent[id & sent_mask];
        enum sent_kind kind = sent->kind;
        sent->kind = ANSWERED;
        switch (kind) {
        case ANSWERED: /* state first, settled later */
            break;
        case DECLARE:
            if (outcome != DECLARED_CODE)
                fail_with_outcome("a declare", state);
            declared(c, &c->slots[sent->slot], inner[0].start, (uint32_t)(inner[0].end - inner[0].start));
            break;
        case DISCHARGE:
            if (outcome != ACCEPTED_CODE)
                fail_with_outcome("a commit", state);
            discharged(c, &c->slots[sent->slot]);
            break;
        case MESSAGE:
            if (outcome == TRANSACTIONAL_CODE && inner[1].kind == DESCRIBED && inner[1].number != ACCEPTED_CODE)
                fail_with_outcome("a post", &inner[1]);
            if (outcome != TRANSACTIONAL_CODE && outcome != ACCEPTED_CODE)
                fail_with_outcome("a post", state);
            if (options.mode == PLAIN) {
                count_latency(nanoseconds() - sent->due_at);
                c->under_way--;
                committed++;
            }
            break;
        }
    }
}

static void on_frame(struct connection *c, const uint8_t *frame, uint32_t size) {
    const uint8_t *end = frame + size;
    const uint8_t *at = frame + (uint32_t)frame[4] * 4;
    struct value performative;
    struct value fields[3];
    if (at < frame + 8 || at > end)
        fail("a frame with data offset %u and size %u", frame[4], size);
    if (at == end) /* empty: the peer is alive */
        return;
    if (at[0] == 0x00 && end - at > 3 && at[1] == 0x53) { /* the common form: no walk over the payload */
        performative.number = at[2];
        performative.start = at + 3;
    } else {
        read_value(at, end, &performative);
        if (performative.kind != DESCRIBED)
            fail("a frame whose body is no performative");
    }
    at = performative.start;
    if (c->phase == CLOSING && performative.number != CLOSE_CODE)
        return;
    switch (performative.number) {
    case OPEN_CODE:
        on_open(c, at, end);
        break;
    case BEGIN_CODE:
        on_begin(c, at, end);
        break;
    case ATTACH_CODE:
        on_attach(c, at, end);
        break;
    case FLOW_CODE:
        on_flow(c, at, end);
        break;
    case TRANSFER_CODE:
        on_transfer(c, at, end);
        break;
    case DISPOSITION_CODE:
        on_disposition(c, at, end);
        break;
    case DETACH_CODE:
        read_list(at, end, fields, 3);
        fail_with_error("the peer detached a link", &fields[2]);
    case END_CODE:
        read_list(at, end, fields, 1);
        fail_with_error("the peer ended the session", &fields[0]);
    case CLOSE_CODE:
        if (c->phase == CLOSING) {
            c->phase = CLOSED;
            break;
        }
        read_list(at, end, fields, 1);
        fail_with_error("the peer closed the connection", &fields[0]);
    case SASL_OUTCOME_CODE: /* 5.3.3.6 */
        read_list(at, end, fields, 1);
        if (fields[0].number != 0)
            fail("the peer refused SASL ANONYMOUS with code %u", (unsigned)fields[0].number);
        introduce(c);
        break;
    default: /* sasl-mechanisms: ours was chosen already */
        break;
    }
}

/* ---------------------------------------------------------------- sockets */

static void watch(struct connection *c, bool for_room) {
    struct epoll_event event = {.events = EPOLLIN | (for_room ? EPOLLOUT : 0), .data.ptr = c};
    c->waits_for_room = for_room;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event) != 0)
        fail("epoll_ctl: %s", strerror(errno));
}

static void flush(struct connection *c) {
    if (c->out_sent == c->out_length)
        return;
    while (c->out_sent < c->out_length) {
        ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_length - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) {
                if (!c->waits_for_room)
                    watch(c, true);
                return;
            }
            if (c->phase == CLOSING) {
                c->phase = CLOSED;
                return;
            }
            fail("connection %d: send: %s", c->number, strerror(errno));
        }
        c->out_sent += (uint32_t)sent;
    }
    c->out_sent = 0;
    c->out_length = 0;
    c->last_sent_at = nanoseconds();
    if (c->waits_for_room)
        watch(c, false);
}

static void receive(struct connection *c) {
    uint32_t done = 0;
    ssize_t received = recv(c->fd, c->in + c->in_length, in_capacity() - c->in_length, 0);
    if (received < 0 && errno == EAGAIN)
        return;
    if (received <= 0) {
        if (c->phase == CLOSING) {
            c->phase = CLOSED;
            epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
            return;
        }
        fail("connection %d: the peer hung up without a close%s%s", c->number, received < 0 ? ": " : "",
             received < 0 ? strerror(errno) : "");
    }
    c->in_length += (uint32_t)received;
    while (c->in_length - done >= 8) {
        const uint8_t *at = c->in + done;
        uint32_t size = get_u32(at);
        if (memcmp(at, "AMQP", 4) == 0) {
            if (memcmp(at, c->phase == SASL ? SASL_HEADER : AMQP_HEADER, 8) != 0)
                fail("the peer asks for another protocol: AMQP %d %d.%d.%d (3 is SASL: try --sasl)", at[4], at[5],
                     at[6], at[7]);
            done += 8;
            continue;
        }
        if (size < 8 || size > in_capacity())
            fail("a frame of %u octets (8 to %u expected)", size, in_capacity());
        if (c->in_length - done < size)
            break;
        on_frame(c, at, size);
        done += size;
    }
    memmove(c->in, c->in + done, c->in_length - done);
    c->in_length -= done;
    if (c->phase == OPEN)
        acknowledge(c);
}

static struct connection *connect_one(int number) {
    struct connection *c = allocate(1, sizeof *c);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    bool even = number % 2 == 0;
    c->number = number;
    c->posts = in_pairs() ? even : options.mode != RETIRE && options.mode != CHECK;
    c->consumes = in_pairs() ? !even
                             : options.mode == RETIRE || options.mode == TRANSFER || options.mode == CHECK;
    c->peer_max_frame = UINT32_MAX;
    c->in = allocate(in_capacity(), 1);
    for (int handle = 0; handle < 8; handle++)
        c->link_of_handle[handle] = LINKS;
    if (options.mode != IDLE) {
        c->sent = allocate(sent_mask + 1, sizeof *c->sent);
        c->arrived = allocate(arrived_mask + 1, sizeof *c->arrived);
    }
    c->next_at = nanoseconds();
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0)
        fail("socket %d: %s", number, strerror(errno));
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1)
        fail("--host: an IPv4 address was expected: %s", options.host);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connection %d to %s:%d: %s", number, options.host, options.port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0)
        fail("epoll_ctl: %s", strerror(errno));
    if (options.sasl) {
        c->phase = SASL;
        write_sasl_init(c);
    } else {
        introduce(c);
    }
    flush(c);
    return c;
}

/* One turn: what the sockets have, then what can be done about it. */
static void turn(int timeout_ms) {
    struct epoll_event events[512];
    int count = epoll_wait(epoll_fd, events, 512, timeout_ms);
    if (count < 0 && errno != EINTR)
        fail("epoll_wait: %s", strerror(errno));
    for (int i = 0; i < count; i++) {
        struct connection *c = events[i].data.ptr;
        if (c->phase == CLOSED)
            continue;
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            receive(c);
        work(c);
        flush(c);
    }
}

/* Keeps the peer's idle timeouts from running out: something is sent in half of each (2.4.5). */
static void keep_alive(uint64_t now) {
    for (int i = 0; i < options.connections; i++) {
        struct connection *c = connections[i];
        uint64_t half = (uint64_t)c->idle_timeout_ms * 500000u;
        if (half > 0 && c->phase == OPEN && c->out_length == 0 && now - c->last_sent_at > half) {
            write_empty_frame(c);
            flush(c);
        }
    }
}

static bool all_are(enum phase phase) {
    for (int i = 0; i < options.connections; i++)
        if (connections[i]->phase != phase)
            return false;
    return true;
}

/* Leaves as a client should: close, and wait a little for the answers. */
static void leave(void) {
    uint64_t until = nanoseconds() + 2000000000u;
    for (int i = 0; i < options.connections; i++) {
        struct connection *c = connections[i];
        c->phase = CLOSING;
        write_close(c);
        flush(c);
    }
    while (nanoseconds() < until && !all_are(CLOSED))
        turn(50);
}

/* ---------------------------------------------------------------- the run */

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void say(const char *line) {
    puts(line);
    fflush(stdout);
}

static void run(void) {
    bool paced = (options.mode == E2E || options.mode == PLAIN) && options.rate > 0;
    uint64_t started_at;
    uint64_t measured_from = 0;
    uint64_t committed_before = 0;
    uint64_t committed_last = 0;
    uint64_t committed_at;
    uint64_t kept_alive_at;
    uint64_t now;
    uint64_t messages;
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    double cpu_before = 0;
    double seconds;
    double cpu;
    bool limited = false;
    bool all_work;

    for (int i = 0; i < options.connections; i++) {
        connections[i] = connect_one(i);
        while (options.mode == IDLE && i % 100 == 99 && connections[i]->phase != OPEN)
            turn(100); /* a hundred at a time, not a crowd */
    }
    started_at = nanoseconds();
    committed_at = started_at;
    kept_alive_at = started_at;
    while (!all_are(OPEN)) {
        turn(100);
        if (nanoseconds() - started_at > (uint64_t)(options.stall * 1e9))
            fail("not all connections and links were open after %.0f s", options.stall);
    }
    started_at = nanoseconds();
    for (;;) {
        now = nanoseconds();
        if (!measuring && now - started_at >= (uint64_t)(options.warm * 1e9)) {
            measuring = true;
            measured_from = now;
            committed_before = committed;
            cpu_before = cpu_seconds();
            say("start");
        }
        limited = options.messages > 0 && committed >= options.messages;
        if (limited && measuring)
            break;
        if (measuring && options.mode != FILL && now - measured_from >= (uint64_t)(options.seconds * 1e9))
            break;
        if (committed != committed_last) {
            committed_last = committed;
            committed_at = now;
        } else if (options.mode != IDLE && now - committed_at > (uint64_t)(options.stall * 1e9)) {
            fail("nothing committed for %.0f s, after %llu messages", options.stall, (unsigned long long)committed);
        }
        if (now - kept_alive_at > 500000000u) {
            kept_alive_at = now;
            keep_alive(now);
        }
        turn(paced ? 1 : 100);
        all_work = paced || (options.mode == MIXED && waiting < options.backlog);
        for (int i = 0; all_work && i < options.connections; i += in_pairs() ? 2 : 1) {
            work(connections[i]);
            flush(connections[i]);
        }
    }
    now = nanoseconds();
    cpu = cpu_seconds() - cpu_before;
    say("end");
    measuring = false;
    messages = committed - committed_before;
    seconds = (double)(now - measured_from) / 1e9;
    for (int i = 0; i < options.connections; i++) {
        uint64_t delivered = connections[i]->delivered;
        if (!connections[i]->consumes)
            continue;
        least = delivered < least ? delivered : least;
        most = delivered > most ? delivered : most;
    }
    leave();
    printf("{\"messages\": %llu, \"seconds\": %.4f, \"total\": %llu, \"limited\": %s, \"cpu_seconds\": %.6f, "
           "\"latencies\": %llu, \"p50_us\": %.0f, \"p99_us\": %.0f, \"least\": %llu, \"most\": %llu}\n",
           (unsigned long long)messages, seconds, (unsigned long long)committed, limited ? "true" : "false", cpu,
           (unsigned long long)latency_count, latency_at(0.50), latency_at(0.99),
           (unsigned long long)(least == UINT64_MAX ? 0 : least), (unsigned long long)most);
}

/* ---------------------------------------------------------------- the command line */

static __attribute__((noreturn)) void usage(void) {
    fputs("load MODE --port N [options]\n"
          "  MODE: post retire transfer mixed fill plain check e2e idle\n"
          "  --host A          IPv4 address (127.0.0.1)\n"
          "  --connections N   (1)\n"
          "  --transaction N   messages a transaction (1)\n"
          "  --slots N         transactions under way on a connection (8)\n"
          "  --seconds X       measured (3)\n"
          "  --warm X          seconds before that (1)\n"
          "  --body N          octets of a message's body (256)\n"
          "  --shape NAME      what it has besides: bare, durable (header, annotations, properties), jms (durable)\n"
          "  --queues N        each connection, mixed and e2e: each pair, has the next of so many (1): NAME-0, NAME-1, ...\n"
          "  --queue NAME      consumed from (A)\n"
          "  --target NAME     posted to (B); mixed and e2e post to the queue\n"
          "  --window N        credit of a consuming link (by transaction and slots)\n"
          "  --messages N      end when so many are committed; needed by fill\n"
          "  --backlog N       mixed: most messages posted and not accepted yet (20000)\n"
          "  --rate X          plain, e2e: messages a second (as fast as it goes)\n"
          "  --settled         posts and retirements are sent settled\n"
          "  --single          one disposition a delivery, never a range\n"
          "  --checkable       transactions have a producer group: each post is durable before its answer\n"
          "  --sasl            with a SASL layer, ANONYMOUS\n"
          "  --stall X         seconds without a commit that are a fault (15)\n",
          stderr);
    exit(2);
}

static double number_of(const char *option, const char *text, double least, double most) {
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || !(number >= least && number <= most))
        fail("--%s: a number from %.10g to %.10g was expected, not %s", option, least, most, text);
    return number;
}

static const char *name_of(const char *option, const char *text) {
    if (strlen(text) < 1 || strlen(text) > MAX_NAME)
        fail("--%s: a name of 1 to %d octets was expected", option, MAX_NAME);
    return text;
}

static enum shape shape_of(const char *text) {
    for (int shape = 0; shape < SHAPES; shape++)
        if (strcmp(text, SHAPE_NAMES[shape]) == 0)
            return (enum shape)shape;
    fail("--shape: bare, durable or jms was expected, not %s", text);
}

static void read_options(int argc, char **argv) {
    enum { PORT, HOST, CONNECTIONS, QUEUES, TRANSACTION, SLOTS, SECONDS, WARM, BODY, SHAPE, QUEUE, TARGET_NAME, WINDOW, MESSAGES, BACKLOG, RATE,
           SETTLED, SINGLE, CHECKABLE, WITH_SASL, STALL };
    static const struct option known[] = {
        {"port", required_argument, NULL, PORT},
        {"host", required_argument, NULL, HOST},
        {"connections", required_argument, NULL, CONNECTIONS},
        {"queues", required_argument, NULL, QUEUES},
        {"transaction", required_argument, NULL, TRANSACTION},
        {"slots", required_argument, NULL, SLOTS},
        {"seconds", required_argument, NULL, SECONDS},
        {"warm", required_argument, NULL, WARM},
        {"body", required_argument, NULL, BODY},
        {"shape", required_argument, NULL, SHAPE},
        {"queue", required_argument, NULL, QUEUE},
        {"target", required_argument, NULL, TARGET_NAME},
        {"window", required_argument, NULL, WINDOW},
        {"messages", required_argument, NULL, MESSAGES},
        {"backlog", required_argument, NULL, BACKLOG},
        {"rate", required_argument, NULL, RATE},
        {"settled", no_argument, NULL, SETTLED},
        {"single", no_argument, NULL, SINGLE},
        {"checkable", no_argument, NULL, CHECKABLE},
        {"sasl", no_argument, NULL, WITH_SASL},
        {"stall", required_argument, NULL, STALL},
        {NULL, 0, NULL, 0},
    };
    int option;
    int index = 0;
    if (argc < 2)
        usage();
    while (options.mode < MODES && strcmp(argv[1], MODE_NAMES[options.mode]) != 0)
        options.mode++;
    if (options.mode == MODES)
        usage();
    optind = 2;
    while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
        const char *name = option == '?' ? "" : known[index].name;
        switch (option) {
        case PORT:
            options.port = (int)number_of(name, optarg, 1, 65535);
            break;
        case HOST:
            options.host = name_of(name, optarg);
            break;
        case CONNECTIONS:
            options.connections = (int)number_of(name, optarg, 1, 25000);
            break;
        case QUEUES:
            options.queues = (int)number_of(name, optarg, 1, 25000);
            break;
        case TRANSACTION:
            options.transaction = (int)number_of(name, optarg, 1, 10000);
            break;
        case SLOTS:
            options.slots = (int)number_of(name, optarg, 1, MAX_SLOTS);
            break;
        case SECONDS:
            options.seconds = number_of(name, optarg, 0.01, 86400);
            break;
        case WARM:
            options.warm = number_of(name, optarg, 0, 86400);
            break;
        case BODY:
            options.body = (int)number_of(name, optarg, 8, 500000);
            break;
        case SHAPE:
            options.shape = shape_of(optarg);
            break;
        case QUEUE:
            options.queue = name_of(name, optarg);
            break;
        case TARGET_NAME:
            options.target = name_of(name, optarg);
            break;
        case WINDOW:
            options.window = (uint32_t)number_of(name, optarg, 1, 1e6);
            break;
        case MESSAGES:
            options.messages = (uint64_t)number_of(name, optarg, 1, 1e12);
            break;
        case BACKLOG:
            options.backlog = (uint64_t)number_of(name, optarg, 1, 1e12);
            break;
        case RATE:
            options.rate = number_of(name, optarg, 0.001, 1e9);
            break;
        case SETTLED:
            options.settled = true;
            break;
        case SINGLE:
            options.single = true;
            break;
        case CHECKABLE:
            options.checkable = true;
            break;
        case WITH_SASL:
            options.sasl = true;
            break;
        case STALL:
            options.stall = number_of(name, optarg, 1, 3600);
            break;
        default:
            usage();
        }
    }
    if (options.port == 0 || optind != argc)
        usage();
    if (in_pairs() && options.connections % 2 != 0)
        fail("%s needs an even number of connections", MODE_NAMES[options.mode]);
    if (options.mode == E2E && options.shape == JMS)
        fail("e2e writes a time into the data, and --shape jms has none");
    if (options.mode == FILL) {
        if (options.messages == 0)
            fail("fill needs --messages");
        options.settled = true;
        options.warm = 0;
    }
    if (options.window == 0) {
        options.window = options.mode == E2E ? 10000 : 4u * (uint32_t)options.transaction * (uint32_t)options.slots;
        if (options.window < 200)
            options.window = 200;
    }
    if (options.window < (uint32_t)options.transaction)
        fail("--window must have room for a transaction (%d messages)", options.transaction);
}

static uint32_t ring_mask(uint64_t least) {
    uint64_t size = 1024;
    while (size < least)
        size *= 2;
    return (uint32_t)(size - 1);
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    sent_mask = ring_mask(16u * (uint64_t)options.slots * ((uint64_t)options.transaction + 2));
    arrived_mask = ring_mask(2u * (uint64_t)options.window);
    latencies = allocate(LATENCIES, sizeof *latencies);
    body_octets = allocate((size_t)options.body, 1);
    memset(body_octets, 'x', (size_t)options.body);
    connections = allocate((size_t)options.connections, sizeof(struct connection *));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        fail("epoll_create1: %s", strerror(errno));
    run();
    return 0;
}
