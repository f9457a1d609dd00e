/* Each function makes, in one call from Python, several calls of Proton's engine that the hot path needs together;
 * steps.py has their twins in Python, with the documentation.
 *
 * They look up Proton's exported functions by name in the library of python-qpid-proton. Arguments and results are
 * cffi's pointers, whose types cffi checks as for a call of the binding. No function waits: none releases the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* pn_bytes_t */
typedef struct {
    size_t size;
    const char *start;
} octets_t;

#define FUNCTIONS                                                                                                     \
    F(void *, pn_collector_peek, (void *))                                                                            \
    F(bool, pn_collector_pop, (void *))                                                                               \
    F(int, pn_event_type, (void *))                                                                                   \
    F(void *, pn_event_delivery, (void *))                                                                            \
    F(void *, pn_event_link, (void *))                                                                                \
    F(void *, pn_delivery, (void *, octets_t))                                                                        \
    F(void *, pn_delivery_link, (void *))                                                                             \
    F(bool, pn_delivery_partial, (void *))                                                                            \
    F(bool, pn_delivery_aborted, (void *))                                                                            \
    F(bool, pn_delivery_settled, (void *))                                                                            \
    F(size_t, pn_delivery_pending, (void *))                                                                          \
    F(uint64_t, pn_delivery_remote_state, (void *))                                                                   \
    F(void *, pn_delivery_remote, (void *))                                                                           \
    F(void *, pn_delivery_local, (void *))                                                                            \
    F(void, pn_delivery_update, (void *, uint64_t))                                                                   \
    F(void, pn_delivery_settle, (void *))                                                                             \
    F(void *, pn_disposition_data, (void *))                                                                          \
    F(ssize_t, pn_data_encode, (void *, char *, size_t))                                                              \
    F(ssize_t, pn_data_decode, (void *, const char *, size_t))                                                        \
    F(uint32_t, pn_session_remote_incoming_window, (void *))                                                          \
    F(void *, pn_link_current, (void *))                                                                              \
    F(ssize_t, pn_link_recv, (void *, char *, size_t))                                                                \
    F(ssize_t, pn_link_send, (void *, const char *, size_t))                                                          \
    F(bool, pn_link_advance, (void *))

#define F(type, name, parameters) static type(*name) parameters;
FUNCTIONS
#undef F

/* The part of cffi's interface for the modules that it generates (_cffi_include.h) that turns pointers. */
enum { FROM_POINTER = 10, TO_POINTER = 11 };
static PyObject *(*from_pointer)(char *, PyObject *);
static char *(*to_pointer)(PyObject *, PyObject *);
/* cffi's types of pointers */
static PyObject *collector_type, *event_type, *link_type, *delivery_type, *session_type;
/* What is asked of a link's object. */
static PyObject *takes_name, *complete_name, *on_delivery_name, *on_flow_name;

static int DELIVERY, LINK_FLOW, TRANSPORT;
enum { TRANSACTIONAL = 0x34 };
/* Octets of a message, and of a state, that is taken here; and of a tag (part 2, section 2.8.7). */
enum { MOST_OCTETS = 1 << 20, MOST_OF_A_STATE = 512, MOST_OF_A_TAG = 32 };
/* Proton encodes a list32: a binary of 16 octets is there. */
enum { TXN_ID = 11, TXN_ID_OCTETS = 16 };

static bool have(Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted)
        return true;
    PyErr_Format(PyExc_TypeError, "%zd arguments were expected, not %zd", wanted, count);
    return false;
}

/* bind(library, types, events): types of pointers to a collector, an event, a link, a delivery and a session; numbers
 * of the events about deliveries, flows and transports. ImportError where anything is not there. */
static PyObject *bind(PyObject *self, PyObject *args) {
    const char *path;
    PyObject *types[5];
    (void)self;
    if (!PyArg_ParseTuple(args, "s(OOOOO)(iii)", &path, &types[0], &types[1], &types[2], &types[3], &types[4],
                          &DELIVERY, &LINK_FLOW, &TRANSPORT))
        return NULL;
    PyObject *backend = PyImport_ImportModule("_cffi_backend");
    PyObject *capsule = backend == NULL ? NULL : PyObject_GetAttrString(backend, "_C_API");
    void **interface = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "cffi");
    Py_XDECREF(capsule);
    Py_XDECREF(backend);
    if (interface == NULL) {
        PyErr_SetString(PyExc_ImportError, "cffi has no interface for compiled modules");
        return NULL;
    }
    *(void **)&from_pointer = interface[FROM_POINTER];
    *(void **)&to_pointer = interface[TO_POINTER];
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return PyErr_Format(PyExc_ImportError, "%s is not loaded", path);
#define F(type, name, parameters)                                                                                     \
    *(void **)&name = dlsym(library, #name);                                                                          \
    if (name == NULL)                                                                                                 \
        return PyErr_Format(PyExc_ImportError, "%s has no " #name, path);
    FUNCTIONS
#undef F
    collector_type = Py_NewRef(types[0]);
    event_type = Py_NewRef(types[1]);
    link_type = Py_NewRef(types[2]);
    delivery_type = Py_NewRef(types[3]);
    session_type = Py_NewRef(types[4]);
    Py_RETURN_NONE;
}

/* same(delivery) -> the same pointer, there and back, and its number: for the test of the interface. */
static PyObject *same(PyObject *self, PyObject *delivery) {
    (void)self;
    char *pointer = to_pointer(delivery, delivery_type);
    if (pointer == NULL && PyErr_Occurred())
        return NULL;
    return Py_BuildValue("NN", from_pointer(pointer, delivery_type), PyLong_FromVoidPtr(pointer));
}

static void *pointer_of(PyObject *object, PyObject *type) {
    void *pointer = to_pointer(object, type);
    if (pointer == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a pointer that is not NULL was expected");
    return pointer;
}

/* The fields of the state that the peer has set; how many octets, or less than 0. */
static ssize_t fields_of(void *delivery, char room[MOST_OF_A_STATE]) {
    return pn_data_encode(pn_disposition_data(pn_delivery_remote(delivery)), room, MOST_OF_A_STATE);
}

/* What a link's object has done: QUIET where it asks itself for what is to be written. Takes a reference. */
enum { FAILED = -1, NOT_TAKEN, DONE, QUIET };

static int said_of(PyObject *done) {
    int said = done == NULL ? FAILED : done == Py_True ? QUIET : DONE;
    Py_XDECREF(done);
    return said;
}

/* The link's object takes the message that is there whole; NOT_TAKEN: it is not such, or it had it before. */
static int take(PyObject *object, PyObject *delivery_object, void *link, void *delivery, size_t most) {
    if (delivery != pn_link_current(link) || pn_delivery_partial(delivery) || pn_delivery_aborted(delivery))
        return NOT_TAKEN;
    size_t size = pn_delivery_pending(delivery);
    if (size > most || size >= MOST_OCTETS)
        return NOT_TAKEN;
    PyObject *txn_id = NULL, *message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (message == NULL)
        return FAILED;
    uint64_t state = pn_delivery_remote_state(delivery);
    if (state == TRANSACTIONAL) {
        char room[MOST_OF_A_STATE];
        if (fields_of(delivery, room) >= TXN_ID + TXN_ID_OCTETS && memcmp(room + TXN_ID - 2, "\xa0\x10", 2) == 0)
            txn_id = PyBytes_FromStringAndSize(room + TXN_ID, TXN_ID_OCTETS);
    }
    PyObject *number = PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(state), *done = NULL;
    if (number != NULL) {
        if (size > 0)
            pn_link_recv(link, PyBytes_AS_STRING(message), size);
        PyObject *settled = pn_delivery_settled(delivery) ? Py_True : Py_False;
        pn_link_advance(link);
        PyObject *args[] = {object, delivery_object, message, number, settled, txn_id == NULL ? Py_None : txn_id};
        done = PyObject_VectorcallMethod(complete_name, args, 6, NULL);
    }
    Py_DECREF(message);
    Py_XDECREF(number);
    Py_XDECREF(txn_id);
    return said_of(done);
}

/* What a delivery's link does about it. */
static int deliver(PyObject *object, void *link, void *delivery) {
    PyObject *takes = PyObject_GetAttr(object, takes_name);
    Py_ssize_t most = takes == NULL ? -1 : PyLong_AsSsize_t(takes);
    Py_XDECREF(takes);
    PyObject *delivery_object = PyErr_Occurred() ? NULL : from_pointer(delivery, delivery_type);
    if (delivery_object == NULL)
        return FAILED;
    int said = most < 0 ? NOT_TAKEN : take(object, delivery_object, link, delivery, (size_t)most);
    if (said == NOT_TAKEN) {
        PyObject *args[] = {object, delivery_object};
        said = said_of(PyObject_VectorcallMethod(on_delivery_name, args, 2, NULL));
    }
    Py_DECREF(delivery_object);
    return said;
}

static PyObject *drain(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!have(count, 3))
        return NULL;
    void *events = pointer_of(args[0], collector_type), *event;
    if (events == NULL)
        return NULL;
    if (!PyDict_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "a dict of links was expected");
    bool handled = false, quiet = true;
    for (bool pops = args[2] == Py_True;; pops = true) {
        if (pops)
            pn_collector_pop(events);
        event = pn_collector_peek(events);
        if (event == NULL)
            return PyBool_FromLong(handled && quiet);
        int kind = pn_event_type(event);
        if (kind == TRANSPORT)
            continue;
        void *delivery = kind == DELIVERY ? pn_event_delivery(event) : NULL;
        void *link = kind == DELIVERY ? pn_delivery_link(delivery) : kind == LINK_FLOW ? pn_event_link(event) : NULL;
        PyObject *key = link == NULL ? NULL : from_pointer(link, link_type), *object = NULL;
        if (key != NULL) {
            object = PyDict_GetItemWithError(args[1], key);
            Py_XINCREF(object); /* the link may end in what it does */
            Py_DECREF(key);
        }
        if (PyErr_Occurred())
            return NULL;
        if (object == NULL)
            return Py_BuildValue("(Ni)", from_pointer(event, event_type), kind);
        int said = delivery != NULL ? deliver(object, link, delivery)
                                    : said_of(PyObject_CallMethodNoArgs(object, on_flow_name));
        Py_DECREF(object);
        if (said == FAILED)
            return NULL;
        if (delivery != NULL) {
            handled = true;
            quiet = quiet && said == QUIET;
        }
    }
}

static PyObject *said(PyObject *self, PyObject *argument) {
    (void)self;
    void *delivery = pointer_of(argument, delivery_type);
    if (delivery == NULL)
        return NULL;
    PyObject *fields = NULL;
    uint64_t state = pn_delivery_remote_state(delivery);
    if (state == TRANSACTIONAL) {
        char room[MOST_OF_A_STATE];
        ssize_t size = fields_of(delivery, room);
        if (size >= 0 && (fields = PyBytes_FromStringAndSize(room, size)) == NULL)
            return NULL;
    }
    return Py_BuildValue("(KNN)", (unsigned long long)state, PyBool_FromLong(pn_delivery_settled(delivery)),
                         fields == NULL ? Py_NewRef(Py_None) : fields);
}

static PyObject *answer(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!have(count, 4))
        return NULL;
    void *delivery = pointer_of(args[0], delivery_type);
    if (delivery == NULL)
        return NULL;
    unsigned long code = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (!PyBytes_CheckExact(args[2]))
        return PyErr_Format(PyExc_TypeError, "the fields of a state are bytes");
    pn_data_decode(pn_disposition_data(pn_delivery_local(delivery)), PyBytes_AS_STRING(args[2]),
                   (size_t)PyBytes_GET_SIZE(args[2]));
    pn_delivery_update(delivery, code);
    if (args[3] == Py_True)
        pn_delivery_settle(delivery);
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!have(count, 2))
        return NULL;
    void *delivery = pointer_of(args[0], delivery_type);
    if (delivery == NULL)
        return NULL;
    unsigned long code = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (!pn_delivery_settled(delivery))
        pn_delivery_update(delivery, code);
    pn_delivery_settle(delivery);
    Py_RETURN_NONE;
}

static PyObject *send_whole(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!have(count, 3))
        return NULL;
    void *link = pointer_of(args[0], link_type);
    if (link == NULL)
        return NULL;
    if (!PyBytes_CheckExact(args[1]) || PyBytes_GET_SIZE(args[1]) > MOST_OF_A_TAG)
        return PyErr_Format(PyExc_ValueError, "a tag is bytes, at most %d", MOST_OF_A_TAG);
    if (!PyBytes_CheckExact(args[2]))
        return PyErr_Format(PyExc_TypeError, "a message is bytes");
    void *delivery = pn_delivery(link, (octets_t){(size_t)PyBytes_GET_SIZE(args[1]), PyBytes_AS_STRING(args[1])});
    pn_link_send(link, PyBytes_AS_STRING(args[2]), (size_t)PyBytes_GET_SIZE(args[2]));
    pn_link_advance(link);
    return from_pointer(delivery, delivery_type);
}

static PyObject *window(PyObject *self, PyObject *argument) {
    (void)self;
    void *session = pointer_of(argument, session_type);
    return session == NULL ? NULL : PyLong_FromUnsignedLong(pn_session_remote_incoming_window(session));
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, NULL},
    {"same", same, METH_O, NULL},
    {"drain", (PyCFunction)(void (*)(void))drain, METH_FASTCALL, NULL},
    {"said", said, METH_O, NULL},
    {"answer", (PyCFunction)(void (*)(void))answer, METH_FASTCALL, NULL},
    {"end", (PyCFunction)(void (*)(void))end, METH_FASTCALL, NULL},
    {"window", window, METH_O, NULL},
    {"send_whole", (PyCFunction)(void (*)(void))send_whole, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_steps", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__steps(void) {
    takes_name = PyUnicode_InternFromString("takes");
    complete_name = PyUnicode_InternFromString("complete");
    on_delivery_name = PyUnicode_InternFromString("on_delivery");
    on_flow_name = PyUnicode_InternFromString("on_flow");
    return PyErr_Occurred() ? NULL : PyModule_Create(&module);
}
