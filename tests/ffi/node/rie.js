// RIE through its C ABI (include/rie.h), with koffi.
//
// Ownership: each object owns a handle, which `close` or the garbage collector frees, in any order.
// Errors: a failed call throws RieError with the library's status and message; its object is as it was.
// Threads: what computes is asynchronous and runs beside the event loop, one call at a time for each object but models.
"use strict";
const koffi = require("koffi");
const { promisify } = require("node:util");

const lib = koffi.load("librie.so.0");
const BUFFER = "_Out_ uint8_t *buf, size_t cap, _Out_ size_t *len";
const freeHandle = lib.func("void rie_free(void *handle)");
const newError = lib.func("void *rie_error_new()");
const errorMessage = lib.func("const char *rie_error_message(void *error)");
const statusName = lib.func("const char *rie_status_name(int32_t status)");
const newOptions = lib.func("void *rie_options_new()");

/** The functions that end with an error object, by name. */
const native = {};
for (const [name, parameters] of Object.entries({
    options_set_int: "void *options, int32_t key, int64_t value",
    options_set_float: "void *options, int32_t key, double value",
    options_set_str: "void *options, int32_t key, const char *value",
    model_load: "const char *path, void *options, _Out_ void **out",
    inspect: `const char *path, void *options, ${BUFFER}`,
    get_int: "void *handle, int32_t key, _Out_ int64_t *out",
    get_str: `void *handle, int32_t key, ${BUFFER}`,
    tokenize: "void *model, uint8_t *text, size_t n, uint32_t flags, _Out_ int32_t *buf, size_t cap, _Out_ size_t *len",
    detokenize: `void *model, int32_t *tokens, size_t n, uint32_t flags, ${BUFFER}`,
    text_stream_new: "void *model, uint32_t flags, _Out_ void **out",
    text_stream_push: `void *stream, int32_t token, ${BUFFER}`,
    session_new: "void *model, void *options, _Out_ void **out",
    session_append: "void *session, int32_t *tokens, size_t n",
    session_eval: "void *session, size_t max_tokens",
    session_fork: "void *session, _Out_ void **out",
    session_save: `void *session, ${BUFFER}`,
    session_load: "void *session, uint8_t *data, size_t n",
    session_cancel: "void *session, int32_t on",
    decode_step: "void *session, void *sampler, _Out_ int32_t *out",
})) {
    native[name] = lib.func(`int32_t rie_${name}(${parameters}, void *error)`);
}

/** Numbers of rie.h; every other key works too. */
const key = { THREADS: 100, ISA: 101, CONTEXT: 102, VOCAB_SIZE: 400, LAYERS: 402, ARCHITECTURE: 800, ISA_SCALAR: 1 };
const flag = { ADD_SPECIAL: 1, PARSE_SPECIAL: 2, SKIP_SPECIAL: 4 };
const OK = 0, BUFFER_TOO_SMALL = -12;

/** A failed call: `status` is RIE_ERR_*, `name` its spelling, the message names the thing at fault. */
class RieError extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
        this.name = statusName(status);
    }
}

function check(status, error) {
    const failure = status < 0 && status !== BUFFER_TOO_SMALL ? new RieError(status, errorMessage(error)) : null;
    freeHandle(error);
    if (failure) {
        throw failure;
    }
    return status;
}

/** Each call has an error object of its own, so that calls in other threads cannot overwrite it. */
function call(name, ...args) {
    const error = newError();
    return check(native[name](...args, error), error);
}

async function callBeside(name, ...args) {
    const error = newError();
    return check(await promisify(native[name].async)(...args, error), error);
}

function make(name, ...args) {
    const out = [null];
    call(name, ...args, out);
    return out[0];
}

/** What a call writes, in a buffer that is made larger until it fits. */
function fill(Kind, room, name, ...args) {
    const length = [room];
    for (;;) {
        const buffer = new Kind(Number(length[0]));
        if (call(name, ...args, buffer, buffer.length, length) === OK) {
            return buffer.subarray(0, Number(length[0]));
        }
    }
}

const text = (...args) => new TextDecoder().decode(fill(Uint8Array, ...args));

/** Frees the handles of objects that were forgotten. */
const forgotten = new FinalizationRegistry(freeHandle);

class Handle {
    constructor(handle) {
        this.handle = handle;
        forgotten.register(this, handle, this);
    }

    close() {
        forgotten.unregister(this);
        freeHandle(this.handle);
    }

    getInt(key) {
        const value = [0];
        call("get_int", this.handle, key, value);
        return Number(value[0]);
    }

    getString(key) {
        return text(64, "get_str", this.handle, key);
    }
}

/** Calls `use` with the options in the library's form, which copies what it reads. `entries`: a Map of keys and values. */
function withOptions(entries, use) {
    const options = newOptions();
    try {
        for (const [key, value] of entries ?? []) {
            const kind = typeof value === "string" ? "str" : key >= 200 ? "float" : "int";
            call(`options_set_${kind}`, options, key, value);
        }
        return use(options);
    } finally {
        freeHandle(options);
    }
}

/** Describes the model at `path` as JSON, without mapping its weights. */
const inspect = (path) => text(1 << 14, "inspect", path, null);

/** A loaded model; sessions and streams live on without it. */
class Model extends Handle {
    constructor(path, options) {
        super(withOptions(options, (set) => make("model_load", path, set)));
    }

    tokenize(string, flags = flag.ADD_SPECIAL) {
        const data = new TextEncoder().encode(string);
        return fill(Int32Array, data.length + 16, "tokenize", this.handle, data, data.length, flags);
    }

    detokenize(tokens, flags = 0) {
        return text(8 * tokens.length, "detokenize", this.handle, tokens, tokens.length, flags);
    }
}

/** Turns tokens into text as they come, never cutting a character. */
class TextStream extends Handle {
    constructor(model, flags = flag.SKIP_SPECIAL) {
        super(make("text_stream_new", model.handle, flags));
    }

    push(...tokens) {
        return tokens.map((token) => text(64, "text_stream_push", this.handle, token)).join("");
    }

    flush() {
        return this.push(-1);
    }
}

/** A sequence of tokens and what is computed of it. `signal`, an AbortSignal, cancels a call also while it runs. */
class Session extends Handle {
    constructor(model, options, handle) {
        super(handle ?? withOptions(options, (set) => make("session_new", model.handle, set)));
    }

    append(tokens) {
        call("session_append", this.handle, Int32Array.from(tokens), tokens.length);
    }

    /** Evaluates all that is queued. */
    eval(signal) {
        return this.#cancellable(signal, "session_eval", 0);
    }

    /** The next likeliest tokens, each made when it is asked for. */
    async *tokens(count, signal) {
        const token = [0];
        for (let i = 0; i < count && (await this.#cancellable(signal, "decode_step", null, token)) === OK; i++) {
            yield token[0];
        }
    }

    /** The same as pieces of text. */
    async *text(stream, count, signal) {
        for await (const token of this.tokens(count, signal)) {
            yield stream.push(token);
        }
        yield stream.flush();
    }

    fork() {
        return new Session(null, null, make("session_fork", this.handle));
    }

    save() {
        return fill(Uint8Array, 0, "session_save", this.handle);
    }

    load(saved) {
        call("session_load", this.handle, saved, saved.length);
    }

    /** Stops what the session computes, until it is called with false. */
    cancel(on = true) {
        call("session_cancel", this.handle, on ? 1 : 0);
    }

    async #cancellable(signal, name, ...args) {
        const cancel = () => this.cancel();
        signal?.addEventListener("abort", cancel);
        if (signal?.aborted) {
            cancel();
        }
        try {
            return await callBeside(name, this.handle, ...args);
        } finally {
            signal?.removeEventListener("abort", cancel);
            if (signal?.aborted) {
                this.cancel(false);
            }
        }
    }
}

module.exports = { key, flag, RieError, inspect, Model, TextStream, Session };
