"""RIE through its C ABI (include/rie.h), with ctypes alone.

Ownership: each object owns a handle, which `close`, the end of a `with` block or the garbage collector frees, in any order.
Errors: a failed call raises Error with the library's status and message; its object is as it was.
Threads: a Model may be shared, anything else takes one call at a time; calls run without the interpreter's lock.
"""

import ctypes
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p

# Numbers of rie.h; every other key works too.
ADD_SPECIAL, PARSE_SPECIAL, SKIP_SPECIAL = 1, 2, 4
THREADS, ISA, CONTEXT, SEED, TEMPERATURE, TOP_P = 100, 101, 102, 106, 200, 201
VOCAB_SIZE, LAYERS, KV_BYTES, ARCHITECTURE = 400, 402, 504, 800
ISA_SCALAR = 1
OK, BUFFER_TOO_SMALL = 0, -12

_lib = ctypes.CDLL("librie.so.0")
_handle, _out, _size, _length = c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_size_t)
_tokens = POINTER(c_int32)

# What each function takes before its last argument, the error object.
_ARGUMENTS = {
    "rie_options_set_int": [_handle, c_int32, c_int64],
    "rie_options_set_float": [_handle, c_int32, c_double],
    "rie_options_set_str": [_handle, c_int32, c_char_p],
    "rie_model_load": [c_char_p, _handle, _out],
    "rie_inspect": [c_char_p, _handle, c_void_p, _size, _length],
    "rie_get_int": [_handle, c_int32, POINTER(c_int64)],
    "rie_get_str": [_handle, c_int32, c_void_p, _size, _length],
    "rie_tokenize": [_handle, c_char_p, _size, c_uint32, c_void_p, _size, _length],
    "rie_detokenize": [_handle, _tokens, _size, c_uint32, c_void_p, _size, _length],
    "rie_text_stream_new": [_handle, c_uint32, _out],
    "rie_text_stream_push": [_handle, c_int32, c_void_p, _size, _length],
    "rie_session_new": [_handle, _handle, _out],
    "rie_session_append": [_handle, _tokens, _size],
    "rie_session_eval": [_handle, _size],
    "rie_session_fork": [_handle, _out],
    "rie_session_save": [_handle, c_void_p, _size, _length],
    "rie_session_load": [_handle, c_char_p, _size],
    "rie_session_cancel": [_handle, c_int32],
    "rie_sampler_new": [_handle, _out],
    "rie_decode_step": [_handle, _handle, _tokens],
}
for _name, _types in _ARGUMENTS.items():
    getattr(_lib, _name).argtypes = [*_types, _handle]
_lib.rie_free.argtypes, _lib.rie_free.restype = [_handle], None
_lib.rie_error_new.argtypes, _lib.rie_error_new.restype = [], _handle
_lib.rie_error_message.argtypes, _lib.rie_error_message.restype = [_handle], c_char_p
_lib.rie_status_name.argtypes, _lib.rie_status_name.restype = [c_int32], c_char_p
_lib.rie_options_new.argtypes, _lib.rie_options_new.restype = [], _handle


class Error(Exception):
    """A failed call: `status` is RIE_ERR_*, `name` its spelling, the text names the thing at fault."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status, self.name = status, _lib.rie_status_name(status).decode()


def _call(name, *arguments, allow=OK):
    """Calls with an error object of its own, so that objects may be used from any thread."""
    error = _lib.rie_error_new()
    try:
        status = getattr(_lib, name)(*arguments, error)
        if status < 0 and status != allow:
            raise Error(status, _lib.rie_error_message(error).decode())
        return status
    finally:
        _lib.rie_free(error)


def _make(name, *arguments):
    handle = c_void_p()
    _call(name, *arguments, byref(handle))
    return handle.value


def _fill(kind, room, name, *arguments):
    """What a call writes, in a buffer that is made larger until it fits."""
    length = c_size_t(room)
    while True:
        buffer = (kind * length.value)()
        if _call(name, *arguments, buffer, len(buffer), byref(length), allow=BUFFER_TOO_SMALL) != BUFFER_TOO_SMALL:
            return buffer[: length.value]


def _text(room, name, *arguments):
    return bytes(_fill(ctypes.c_ubyte, room, name, *arguments)).decode()


def _array(tokens):
    return (c_int32 * len(tokens))(*tokens), len(tokens)


class _Object:
    def __init__(self, handle):
        self._as_parameter_ = c_void_p(handle)  # so that calls take the object itself, and keep it alive
        self.close = weakref.finalize(self, _lib.rie_free, handle)  # once, whoever calls it

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def get_int(self, key):
        value = c_int64()
        _call("rie_get_int", self, key, byref(value))
        return value.value

    def get_str(self, key):
        return _text(64, "rie_get_str", self, key)


class _Options(_Object):
    """Options as a dictionary: int, float or str by RIE_OPT_*."""

    def __init__(self, values):
        super().__init__(_lib.rie_options_new())
        for key, value in (values or {}).items():
            if isinstance(value, str):
                _call("rie_options_set_str", self, key, value.encode())
            else:
                kind = "float" if isinstance(value, float) else "int"
                _call(f"rie_options_set_{kind}", self, key, value)


def inspect(path):
    """Describes the model at `path` as JSON, without mapping its weights."""
    return _text(1 << 14, "rie_inspect", path.encode(), None)


class Model(_Object):
    """A loaded model; sessions and streams live on without it."""

    def __init__(self, path, options=None):
        super().__init__(_make("rie_model_load", path.encode(), _Options(options)))

    def tokenize(self, text, flags=ADD_SPECIAL):
        data = text.encode()
        return _fill(c_int32, len(data) + 16, "rie_tokenize", self, data, len(data), flags)

    def detokenize(self, tokens, flags=0):
        return _text(8 * len(tokens), "rie_detokenize", self, *_array(tokens), flags)


class Sampler(_Object):
    """Chooses tokens from logits."""

    def __init__(self, options=None):
        super().__init__(_make("rie_sampler_new", _Options(options)))


class TextStream(_Object):
    """Turns tokens into text as they come, never cutting a character."""

    def __init__(self, model, flags=SKIP_SPECIAL):
        super().__init__(_make("rie_text_stream_new", model, flags))

    def push(self, *tokens):
        return "".join(_text(64, "rie_text_stream_push", self, token) for token in tokens)

    def flush(self):
        return self.push(-1)


class Session(_Object):
    """A sequence of tokens and what is computed of it."""

    def __init__(self, model, options=None, handle=None):
        super().__init__(handle or _make("rie_session_new", model, _Options(options)))

    def append(self, tokens):
        _call("rie_session_append", self, *_array(tokens))

    def eval(self):
        _call("rie_session_eval", self, 0)

    def tokens(self, count, sampler=None):
        """The next tokens, each made when it is asked for; the likeliest without a sampler."""
        token = c_int32()
        for _ in range(count):
            if _call("rie_decode_step", self, sampler, byref(token)) != OK:
                return
            yield token.value

    def text(self, stream, count, sampler=None):
        """The same as pieces of text."""
        for token in self.tokens(count, sampler):
            yield stream.push(token)
        yield stream.flush()

    def fork(self):
        return Session(None, handle=_make("rie_session_fork", self))

    def save(self):
        return bytes(_fill(ctypes.c_ubyte, 0, "rie_session_save", self))

    def load(self, saved):
        _call("rie_session_load", self, saved, len(saved))

    def cancel(self, on=True):
        """Stops what the session computes, until it is called with False. Any thread, at any time."""
        _call("rie_session_cancel", self, int(on))
