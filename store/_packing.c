/* Encode lists of numbers or octets as arrays in PostgreSQL's binary format, like arrays.py, which gets the rest: other
 * sequences, and numbers too large for their column, for which it raises the errors. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* HEAD: dimensions, has-nulls, type, length, lower bound. SIZE: of each element. */
enum { HEAD = 20, SIZE = 4 };

static uint8_t *put(uint8_t *at, uint64_t value, long width) {
    for (long shift = 8 * (width - 1); shift >= 0; shift -= 8)
        *at++ = (uint8_t)(value >> shift);
    return at;
}

static uint8_t *put_head(uint8_t *at, Py_ssize_t count, uint32_t type) {
    at = put(at, 1, 4);
    at = put(at, 0, 4);
    at = put(at, type, 4);
    at = put(at, (uint64_t)count, 4);
    return put(at, 1, 4);
}

/* Of bool and int alone, so that nothing of Python runs: the list stays as it is. */
static bool number_of(PyObject *element, long width, int64_t *value) {
    int overflow = 0;
    if (!PyLong_Check(element))
        return false;
    *value = PyLong_AsLongLongAndOverflow(element, &overflow);
    return overflow == 0 && (width == 8 || (width == 4 && *value == (int32_t)*value) ||
                             (width == 2 && *value == (int16_t)*value) || (width == 1 && PyBool_Check(element)));
}

/* The type's number in PostgreSQL, and the width of its elements; false: an error is set. */
static bool numbers(PyObject *const *given, Py_ssize_t count, long *found) {
    for (Py_ssize_t each = 0; each < count; each++) {
        found[each] = PyLong_AsLong(given[each]);
        if (found[each] == -1 && PyErr_Occurred())
            return false;
    }
    return true;
}

/* A list with so many elements of at least so many octets that fit into an array; else Python's. */
static bool is_plain_list(PyObject *values, Py_ssize_t octets) {
    return PyList_CheckExact(values) && PyList_GET_SIZE(values) <= (INT32_MAX - HEAD) / (SIZE + octets);
}

/* fixed(values, type, width): None: look yourself. */
static PyObject *fixed(PyObject *self, PyObject *const *given, Py_ssize_t arguments) {
    long numbered[2];
    Py_ssize_t count;
    PyObject *made;
    uint8_t *at;
    long width;
    (void)self;
    if (arguments != 3)
        return PyErr_Format(PyExc_TypeError, "fixed() takes 3 arguments");
    if (!numbers(given + 1, 2, numbered))
        return NULL;
    width = numbered[1];
    if (!(width == 1 || width == 2 || width == 4 || width == 8) || !is_plain_list(given[0], width))
        Py_RETURN_NONE;
    count = PyList_GET_SIZE(given[0]);
    made = PyBytes_FromStringAndSize(NULL, HEAD + count * (SIZE + width));
    if (made == NULL)
        return NULL;
    at = put_head((uint8_t *)PyBytes_AS_STRING(made), count, (uint32_t)numbered[0]);
    for (Py_ssize_t each = 0; each < count; each++) {
        int64_t value;
        if (!number_of(PyList_GET_ITEM(given[0], each), width, &value)) {
            Py_DECREF(made);
            Py_RETURN_NONE;
        }
        at = put(at, (uint64_t)width, SIZE);
        at = put(at, (uint64_t)value, width);
    }
    return made;
}

/* varying(values, type): octets; None: look yourself. */
static PyObject *varying(PyObject *self, PyObject *const *given, Py_ssize_t arguments) {
    Py_ssize_t count, size;
    PyObject *made;
    uint8_t *at;
    long type;
    (void)self;
    if (arguments != 2)
        return PyErr_Format(PyExc_TypeError, "varying() takes 2 arguments");
    if (!numbers(given + 1, 1, &type))
        return NULL;
    if (!is_plain_list(given[0], 0))
        Py_RETURN_NONE;
    count = PyList_GET_SIZE(given[0]);
    size = HEAD + SIZE * count;
    for (Py_ssize_t each = 0; each < count; each++) {
        PyObject *element = PyList_GET_ITEM(given[0], each);
        if (!PyBytes_CheckExact(element) || PyBytes_GET_SIZE(element) > INT32_MAX - size)
            Py_RETURN_NONE; /* more than a parameter may have, or octets in a file */
        size += PyBytes_GET_SIZE(element);
    }
    made = PyBytes_FromStringAndSize(NULL, size);
    if (made == NULL)
        return NULL;
    at = put_head((uint8_t *)PyBytes_AS_STRING(made), count, (uint32_t)type);
    for (Py_ssize_t each = 0; each < count; each++) {
        PyObject *element = PyList_GET_ITEM(given[0], each);
        size_t octets = (size_t)PyBytes_GET_SIZE(element);
        at = put(at, octets, SIZE);
        memcpy(at, PyBytes_AS_STRING(element), octets);
        at += octets;
    }
    return made;
}

static PyMethodDef methods[] = {
    {"fixed", (PyCFunction)(void (*)(void))fixed, METH_FASTCALL, NULL},
    {"varying", (PyCFunction)(void (*)(void))varying, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_packing", .m_size = 0, .m_methods = methods};
PyMODINIT_FUNC PyInit__packing(void) { return PyModuleDef_Init(&module); }
