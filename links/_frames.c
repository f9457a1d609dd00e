/* plain() and unnoted() skip frames that need no rule, of a peer and of the service; frames.py has their twins in
 * Python, with the documentation.
 *
 * They read nothing at or behind the end of the octets: they compare the size of each frame with the octets left, in 64
 * bits, before they move, and allocate nothing by it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The sanitizer finds reads of the octet that CPython keeps behind the last of each `bytes`. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at))
#endif

enum { EMPTY = 8, BARE = 2 };
/* Descriptors, where the frame's header is of 8 octets. */
enum { BEGIN = 0x11, ATTACH = 0x12, FLOW = 0x13, TRANSFER = 0x14 };
enum { DISPOSITION = 0x15, DETACH = 0x16, END = 0x17, CLOSE = 0x18 };
/* Octets of a frame up to its descriptor. */
enum { HEAD = 11 };
enum { MOST_OF_A_TAG = 32 };
/* Octets of a disposition whose state is not counted. */
enum { LITTLE = 80 };

static PyObject *received_name, *delivery_name, *sent_name;

static uint32_t u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Octets of a uint with its constructor; 0: it is none, or cut off. */
static size_t uint_at(const uint8_t *at, const uint8_t *end) {
    if (at == end)
        return 0;
    size_t size = *at == 0x43 ? 1 : *at == 0x52 ? 2 : *at == 0x70 ? 5 : 0;
    return size <= (size_t)(end - at) ? size : 0;
}

/* Of a uint with its constructor, which has so many octets. */
static uint32_t uint_of(const uint8_t *at, size_t size) {
    return size == 1 ? 0 : size == 2 ? at[1] : u32(at + 1);
}

/* What a plain frame is about: a delivery of the peer's, or those that a disposition names. */
struct about {
    const uint8_t *handle; /* NULL: of a disposition */
    size_t handle_size;
    uint32_t first, last;
};

/* Whether a value is described by a symbol. */
static bool is_named(const uint8_t *at, const uint8_t *end) {
    return end - at >= 2 && at[0] == 0 && (at[1] == 0xa3 || at[1] == 0xb3);
}

/* Whether a state has a symbol for its descriptor, or is a rejected with an error, which may have one. */
static bool is_named_state(const uint8_t *at, const uint8_t *end) {
    return is_named(at, end) || (end - at >= 4 && at[0] == 0 && at[1] == 0x53 && at[2] == 0x25 &&
                                 (at[3] == 0xc0 || at[3] == 0xd0));
}

/* The same of a disposition by a receiver, from the first of its fields on. */
static bool is_plain_disposition(const uint8_t *at, const uint8_t *end, uint8_t count, struct about *about) {
    size_t size;
    if (count < 2 || count > 6 || at == end || *at != 0x41 || (size = uint_at(at + 1, end)) == 0)
        return false;
    *about = (struct about){NULL, 0, uint_of(at + 1, size), uint_of(at + 1, size)};
    at += 1 + size;
    if (count == 2)
        return true;
    if (at < end && *at == 0x40) /* the last is the first */
        at++;
    else if ((size = uint_at(at, end)) == 0)
        return false;
    else {
        about->last = uint_of(at, size);
        at += size;
    }
    if (count == 3)
        return true;
    if (at == end || *at < 0x40 || *at > 0x42) /* settled */
        return false;
    return count == 4 || !is_named_state(at + 1, end);
}

/* Whether the frame at `at` is plain, as far as its own octets say, and what it is about. */
static bool is_plain(const uint8_t *at, const uint8_t *end, struct about *about) {
    if (end - at < HEAD || at[4] != BARE || at[5] != 0 || at[8] != 0 || at[9] != 0x53)
        return false;
    uint8_t code = at[10];
    at += HEAD;
    if (end - at >= 3 && at[0] == 0xc0)
        at += 2;
    else if (end - at >= 9 && at[0] == 0xd0 && at[5] == 0 && at[6] == 0 && at[7] == 0 &&
             (code != TRANSFER || (at[1] == 0 && at[2] == 0 && at[3] < 4))) /* a transfer's fields are bounded */
        at += 8;
    else
        return false;
    uint8_t count = *at++;
    size_t size;
    if (code == DISPOSITION)
        return is_plain_disposition(at, end, count, about);
    if (code != TRANSFER || count < 4 || count > 11 || (size = uint_at(at, end)) == 0)
        return false;
    about->handle = at;
    about->handle_size = size;
    at += size;
    if ((size = uint_at(at, end)) == 0) /* the delivery-id */
        return false;
    about->first = about->last = uint_of(at, size);
    at += size;
    if (end - at < 2 || at[0] != 0xa0 || at[1] > MOST_OF_A_TAG || end - at < 2 + at[1])
        return false;
    at += 2 + at[1];
    size = uint_at(at, end); /* the message-format */
    if (size == 0 || uint_of(at, size) != 0)
        return false;
    at += size;
    if (count == 4)
        return true;
    if (at == end || *at < 0x40 || *at > 0x42) /* settled */
        return false;
    at++;
    if (count == 5)
        return true;
    if (at == end || (*at != 0x40 && *at != 0x42)) /* more */
        return false;
    at++;
    if (count == 6)
        return true;
    if (at == end || *at != 0x40) /* rcv-settle-mode */
        return false;
    at++;
    if (count <= 8)
        return !is_named(at, end); /* the state */
    return end - at >= 2 && at[0] == 0x40 && (at[1] == 0x40 || at[1] == 0x42); /* none, and resume */
}

/* owner.name += more; whether that was done. */
static bool add(PyObject *owner, PyObject *name, Py_ssize_t more) {
    if (more == 0)
        return true;
    PyObject *before = PyObject_GetAttr(owner, name), *by = before == NULL ? NULL : PyLong_FromSsize_t(more);
    PyObject *after = by == NULL ? NULL : PyNumber_Add(before, by);
    bool done = after != NULL && PyObject_SetAttr(owner, name, after) == 0;
    Py_XDECREF(before);
    Py_XDECREF(by);
    Py_XDECREF(after);
    return done;
}

/* Plain frames of one link, or dispositions of one session, one after the other. */
struct run {
    PyObject *channel; /* NULL: there is none */
    const uint8_t *frame; /* the first of them, and what it is about */
    struct about about;
    Py_ssize_t transfers;
    uint32_t next; /* of its deliveries */
    int64_t highest; /* delivery that its dispositions name; -1: none */
};

static bool is_of(const struct run *run, const uint8_t *frame, const struct about *about) {
    return run->channel != NULL && memcmp(frame + 6, run->frame + 6, 2) == 0 &&
           (about->handle == NULL) == (run->about.handle == NULL) && about->handle_size == run->about.handle_size &&
           (about->handle == NULL || memcmp(about->handle, run->about.handle, about->handle_size) == 0);
}

/* What it has changed is told to its channel. Whether that was done. */
static bool end_run(struct run *run, PyObject *told) {
    if (run->channel == NULL)
        return true;
    bool done = add(run->channel, received_name, run->transfers);
    if (done && run->transfers > 0) {
        PyObject *next = PyLong_FromUnsignedLong(run->next);
        done = next != NULL && PyObject_SetAttr(run->channel, delivery_name, next) == 0;
        Py_XDECREF(next);
    }
    if (done && run->highest >= 0) {
        PyObject *highest = PyLong_FromLongLong(run->highest);
        done = highest != NULL && PyDict_SetItem(told, run->channel, highest) == 0;
        Py_XDECREF(highest);
    }
    Py_CLEAR(run->channel);
    return done;
}

/* Whether the frame begins one: false without an error where it has no channel. */
static bool begin_run(struct run *run, PyObject *plain, PyObject *told, const uint8_t *frame,
                      const struct about *about) {
    *run = (struct run){.frame = frame, .about = *about, .highest = -1};
    PyObject *key = about->handle == NULL ? Py_BuildValue("(y#O)", frame + 6, (Py_ssize_t)2, Py_None)
                                          : Py_BuildValue("(y#y#)", frame + 6, (Py_ssize_t)2, about->handle,
                                                          (Py_ssize_t)about->handle_size);
    run->channel = key == NULL ? NULL : PyDict_GetItemWithError(plain, key);
    Py_XINCREF(run->channel);
    Py_XDECREF(key);
    if (run->channel == NULL)
        return false;
    if (about->handle != NULL) {
        PyObject *next = PyObject_GetAttr(run->channel, delivery_name);
        run->next = next == NULL ? 0 : (uint32_t)PyLong_AsUnsignedLongMask(next);
        Py_XDECREF(next);
        return PyErr_Occurred() == NULL;
    }
    PyObject *highest = PyDict_GetItemWithError(told, run->channel);
    if (highest != NULL)
        run->highest = PyLong_AsLongLong(highest);
    return PyErr_Occurred() == NULL;
}

static Py_ssize_t pass_plain(const uint8_t *octets, Py_ssize_t size, Py_ssize_t at, PyObject *plain, PyObject *told) {
    const uint8_t *end = octets + size;
    struct run run = {NULL};
    struct about about;
    while (at < size && is_plain(octets + at, end, &about)) {
        const uint8_t *frame = octets + at;
        uint32_t octets_of_it = u32(frame);
        if (octets_of_it < EMPTY)
            break;
        /* nearly always the same link as of the frame before */
        if (!is_of(&run, frame, &about) && !(end_run(&run, told) && begin_run(&run, plain, told, frame, &about)))
            break;
        if (about.handle != NULL) {
            if (about.first != run.next)
                break;
            run.next++;
            run.transfers++;
        } else if (octets_of_it > LITTLE || (Py_ssize_t)octets_of_it > size - at || about.first <= run.highest ||
                   about.last < about.first)
            break;
        else
            run.highest = about.last;
        at += octets_of_it;
    }
    if (!PyErr_Occurred())
        end_run(&run, told);
    Py_XDECREF(run.channel);
    return PyErr_Occurred() ? -1 : at;
}

static PyObject *plain(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 4 || !PyBytes_CheckExact(args[0]) || !PyDict_CheckExact(args[2]) || !PyDict_CheckExact(args[3]))
        return PyErr_Format(PyExc_TypeError, "bytes, a place in them and two dicts were expected");
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), size = PyBytes_GET_SIZE(args[0]);
    if (at < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "the place is below 0");
    const uint8_t *octets = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    ASAN_POISON_MEMORY_REGION(octets + size, 1);
    at = pass_plain(octets, size, at, args[2], args[3]);
    ASAN_UNPOISON_MEMORY_REGION(octets + size, 1);
    return at < 0 ? NULL : PyLong_FromSsize_t(at);
}

static PyObject *unnoted(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "4 arguments were expected, not %zd", count);
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "the place is below 0");
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) != 0)
        return NULL;
    bool rewrites = args[3] == Py_True;
    const uint8_t *octets = view.buf;
    PyObject *session = NULL;
    unsigned number = 0;
    Py_ssize_t transfers = 0;
    while (at <= view.len - HEAD) {
        const uint8_t *frame = octets + at;
        uint32_t size = u32(frame);
        uint8_t code = frame[10];
        if (size < EMPTY)
            break;
        if (size > EMPTY && (code == BEGIN || code == ATTACH || code == DETACH || code == END ||
                             (rewrites && (code == FLOW || code == CLOSE))))
            break;
        if (size > EMPTY && code == TRANSFER) {
            unsigned channel = (unsigned)frame[6] << 8 | frame[7];
            if (session == NULL || channel != number) {
                if (session != NULL && !add(session, sent_name, transfers))
                    break;
                Py_CLEAR(session);
                transfers = 0;
                PyObject *key = PyLong_FromUnsignedLong(channel);
                session = key == NULL ? NULL : PyObject_GetItem(args[2], key);
                Py_XDECREF(key);
                if (session == NULL)
                    break;
                number = channel;
            }
            transfers++;
        }
        at += size;
    }
    if (session != NULL) {
        if (!PyErr_Occurred())
            add(session, sent_name, transfers);
        Py_DECREF(session);
    }
    PyBuffer_Release(&view);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
}

static PyMethodDef methods[] = {
    {"plain", (PyCFunction)(void (*)(void))plain, METH_FASTCALL, NULL},
    {"unnoted", (PyCFunction)(void (*)(void))unnoted, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_frames", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frames(void) {
    received_name = PyUnicode_InternFromString("received");
    delivery_name = PyUnicode_InternFromString("delivery");
    sent_name = PyUnicode_InternFromString("sent");
    return received_name == NULL || delivery_name == NULL || sent_name == NULL ? NULL : PyModule_Create(&module);
}
