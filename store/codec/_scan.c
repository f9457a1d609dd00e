/* scan() is examine() of message.py for plain messages, which nearly all are. It accepts a subset of what Python
 * accepts, with the same result, and leaves all others to Python, which raises the errors.
 *
 * It reads nothing at or behind `end`: it compares each size and count of the peer with the octets left, in 64 bits,
 * before it moves, and allocates nothing by them. */
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

enum {
    HEADER = 0x70,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    APPLICATION_PROPERTIES,
    DATA,
    SEQUENCE,
    VALUE,
    FOOTER,
};

enum { ABSOLUTE_EXPIRY = 8, GROUP_ID = 10 };
enum { MOST_FIELDS_OF_HEADER = 5, MOST_FIELDS_OF_PROPERTIES = 13 };
/* Of one that Python need not look at. */
enum { MOST_SECTIONS = 100, MOST_OF_A_MAP = 2000 };

/* A number that a message may leave out. */
struct number {
    uint64_t value;
    bool said;
};

struct facts {
    struct number ttl, expiry, priority;
    const uint8_t *group; /* str8-utf8, checked; NULL: not said */
};

static uint32_t u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t u64(const uint8_t *at) { return (uint64_t)u32(at) << 32 | u32(at + 4); }

static bool is_fixed(uint8_t code) {
    static const uint8_t codes[] = {0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x60,
                                    0x61, 0x70, 0x71, 0x72, 0x73, 0x74, 0x80, 0x81, 0x82, 0x83, 0x84, 0x94, 0x98};
    return memchr(codes, code, sizeof codes) != NULL;
}

/* Behind the value at `at`; NULL: cut off, of no type, or described. */
static const uint8_t *skip(const uint8_t *at, const uint8_t *end) {
    static const uint8_t widths[16] = {[5] = 1, [6] = 2, [7] = 4, [8] = 8, [9] = 16};
    uint64_t size;
    uint8_t code;
    if (at >= end)
        return NULL;
    code = *at++;
    switch (code) {
    case 0xa0: case 0xa1: case 0xa3: case 0xc0: case 0xc1: case 0xe0:
        if (at >= end)
            return NULL;
        size = 1 + (uint64_t)*at;
        break;
    case 0xb0: case 0xb1: case 0xb3: case 0xd0: case 0xd1: case 0xf0:
        if (end - at < 4)
            return NULL;
        size = 4 + (uint64_t)u32(at);
        break;
    default:
        if (!is_fixed(code))
            return NULL;
        size = widths[code >> 4];
    }
    return (uint64_t)(end - at) < size ? NULL : at + size;
}

/* Moves `at`, a list or map that ends at `end`, to its first value and gives their count; -1: there is no count. */
static int64_t enter(const uint8_t **at, const uint8_t *end) {
    const uint8_t *start = *at;
    switch (*start) {
    case 0x45:
        *at = start + 1;
        return 0;
    case 0xc0: case 0xc1:
        if (end - start < 3)
            return -1;
        *at = start + 3;
        return start[2];
    case 0xd0: case 0xd1:
        if (end - start < 9)
            return -1;
        *at = start + 9;
        return u32(start + 5);
    default:
        return -1;
    }
}

static bool is_text(uint8_t code) { return code == 0xa1 || code == 0xa3 || code == 0xb1 || code == 0xb3; }

/* Behind a value that holds no others; texts are ASCII, as Python's decoder looks at UTF-8. */
static const uint8_t *scalar(const uint8_t *at, const uint8_t *end) {
    const uint8_t *after = skip(at, end);
    if (after == NULL || *at >= 0xc0 || *at == 0x45)
        return NULL;
    if (is_text(*at))
        for (const uint8_t *each = at + (*at >> 4 == 0xa ? 2 : 5); each < after; each++)
            if (*each & 0x80)
                return NULL;
    return after;
}

/* What unsigned() takes; `found` stays as it is where the value is null. */
static bool number(const uint8_t *at, uint64_t most, struct number *found) {
    uint64_t value;
    switch (*at) {
    case 0x40:
        return true;
    case 0x43: case 0x44:
        value = 0;
        break;
    case 0x50: case 0x52: case 0x53:
        value = at[1];
        break;
    case 0x60:
        value = (uint64_t)at[1] << 8 | at[2];
        break;
    case 0x70:
        value = u32(at + 1);
        break;
    case 0x80:
        value = u64(at + 1);
        break;
    case 0x83:
        value = u64(at + 1);
        if (value >> 63)
            return false; /* before 1970 */
        break;
    default:
        return false;
    }
    found->value = value;
    found->said = true;
    return value <= most;
}

static bool boolean_or_null(const uint8_t *at) { return (*at >= 0x40 && *at <= 0x42) || *at == 0x56; }

static bool header_field(int64_t index, const uint8_t *at, struct facts *facts) {
    struct number unused;
    switch (index) {
    case 1:
        return number(at, UINT8_MAX, &facts->priority);
    case 2:
        return number(at, UINT32_MAX, &facts->ttl);
    case 4:
        return number(at, UINT32_MAX, &unused);
    default:
        return boolean_or_null(at);
    }
}

static bool property(int64_t index, const uint8_t *at, struct facts *facts) {
    if (index == ABSOLUTE_EXPIRY)
        return number(at, UINT64_MAX, &facts->expiry);
    if (index == GROUP_ID && *at != 0x40) {
        facts->group = at;
        return *at == 0xa1;
    }
    return true;
}

static bool fields(const uint8_t *at, const uint8_t *end, int code, struct facts *facts) {
    bool is_header = code == HEADER;
    int64_t count;
    if (*at != 0x45 && *at != 0xc0 && *at != 0xd0)
        return false;
    count = enter(&at, end);
    if (count < 0 || count > (is_header ? MOST_FIELDS_OF_HEADER : MOST_FIELDS_OF_PROPERTIES))
        return false;
    for (int64_t index = 0; index < count; index++) {
        const uint8_t *after = scalar(at, end);
        if (after == NULL || !(is_header ? header_field : property)(index, at, facts))
            return false;
        at = after;
    }
    return at == end;
}

static bool begins(const uint8_t *key, const uint8_t *after, const char *text) {
    size_t size = strlen(text);
    return (size_t)(after - key) >= 2 + size && memcmp(key + 2, text, size) == 0;
}

/* Whether Python may find a fact under this key; long texts are left to it, whatever they say. */
static bool may_matter(const uint8_t *key, const uint8_t *after, int code) {
    if (!is_text(*key) || code == DELIVERY_ANNOTATIONS)
        return false;
    if (*key >> 4 == 0xb)
        return true;
    if (code == MESSAGE_ANNOTATIONS)
        return begins(key, after, "x-opt-delivery-");
    return begins(key, after, "producer-group") || begins(key, after, "check-");
}

static bool map(const uint8_t *at, const uint8_t *end, int code) {
    int64_t count;
    if (*at != 0xc1 && *at != 0xd1)
        return false;
    count = enter(&at, end);
    if (count < 0 || count % 2 != 0 || count > MOST_OF_A_MAP)
        return false;
    for (; count > 0; count -= 2) {
        const uint8_t *after = scalar(at, end);
        if (after == NULL || may_matter(at, after, code))
            return false;
        at = skip(after, end);
        if (at == NULL)
            return false;
    }
    return at == end;
}

static bool section(int code, const uint8_t *at, const uint8_t *end, struct facts *facts) {
    switch (code) {
    case HEADER: case PROPERTIES:
        return fields(at, end, code, facts);
    case DELIVERY_ANNOTATIONS: case MESSAGE_ANNOTATIONS: case APPLICATION_PROPERTIES:
        return map(at, end, code);
    case DATA:
        return *at == 0xa0 || *at == 0xb0;
    case SEQUENCE:
        return *at == 0x45 || *at == 0xc0 || *at == 0xd0;
    case FOOTER:
        return *at == 0xc1 || *at == 0xd1;
    default:
        return true; /* amqp-value: any */
    }
}

/* Sections are in the order of their codes; data and sequence may repeat, and a body is of one kind. */
static bool in_order(int last, int code) {
    if (code < HEADER || code > FOOTER || code < last)
        return false;
    if (code == last)
        return code == DATA || code == SEQUENCE;
    return !(DATA <= last && code < FOOTER);
}

/* False: Python has to look. */
static bool is_plain(const uint8_t *at, const uint8_t *end, struct facts *facts) {
    int last = 0;
    for (int sections = 0; at < end; sections++) {
        const uint8_t *after;
        int code;
        if (sections == MOST_SECTIONS || end - at < 4 || at[0] != 0x00 || at[1] != 0x53)
            return false;
        code = at[2];
        after = skip(at + 3, end);
        if (!in_order(last, code) || after == NULL || !section(code, at + 3, after, facts))
            return false;
        last = code;
        at = after;
    }
    return true;
}

static PyObject *number_or_none(const struct number *number) {
    return number->said ? PyLong_FromUnsignedLongLong(number->value) : Py_NewRef(Py_None);
}

static PyObject *tuple_of(const struct facts *facts) {
    PyObject *items[4] = {number_or_none(&facts->ttl), number_or_none(&facts->expiry), number_or_none(&facts->priority),
                          facts->group == NULL
                              ? Py_NewRef(Py_None)
                              : PyUnicode_DecodeASCII((const char *)facts->group + 2, facts->group[1], NULL)};
    PyObject *made = NULL;
    if (items[0] != NULL && items[1] != NULL && items[2] != NULL && items[3] != NULL)
        made = PyTuple_Pack(4, items[0], items[1], items[2], items[3]);
    for (int each = 0; each < 4; each++)
        Py_XDECREF(items[each]);
    return made;
}

/* scan(message): None: look yourself; (): it says nothing; (ttl, absolute expiry, priority, group). */
static PyObject *scan(PyObject *self, PyObject *message) {
    struct facts facts = {0};
    const uint8_t *start, *end;
    bool plain;
    (void)self;
    if (!PyBytes_CheckExact(message))
        Py_RETURN_NONE;
    start = (const uint8_t *)PyBytes_AS_STRING(message);
    end = start + PyBytes_GET_SIZE(message);
    ASAN_POISON_MEMORY_REGION(end, 1);
    plain = is_plain(start, end, &facts);
    ASAN_UNPOISON_MEMORY_REGION(end, 1);
    if (!plain)
        Py_RETURN_NONE;
    if (facts.ttl.said || facts.expiry.said || facts.priority.said || facts.group != NULL)
        return tuple_of(&facts);
    return PyTuple_New(0);
}

static PyMethodDef methods[] = {{"scan", scan, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_scan", .m_size = 0, .m_methods = methods};
PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&module); }
