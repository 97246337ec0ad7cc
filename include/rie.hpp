// rie.hpp: the C++17 face of rie.h, header-only. License: MIT OR Apache-2.0.
//
//     rie::Model model("smollm");
//     rie::Session session(model);
//     rie::TextStream stream(model);
//     session.append(model.tokenize("Gravity is"));
//     for (const std::string &piece : session.text(stream, 64)) {
//         std::cout << piece << std::flush;
//     }
//
// OWNERSHIP. Each object owns one handle, can be moved and not copied, and frees it at its end, in any order: a session
// keeps its model alive. `get()` lends the handle to the functions of rie.h. One that was moved from only fails.
// ERRORS. Every call that fails throws rie::Error, with the status and the library's message, and leaves its object as
// it was. Only std::bad_alloc comes besides, and what a progress function throws. What a log function throws is dropped.
// THREADS. A Model may be shared freely. Anything else takes one call at a time, from any thread; a second one throws
// RIE_ERR_BUSY. Session::cancel alone may come at any time, from any thread, and so may set_log.
#ifndef RIE_HPP
#define RIE_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rie.h"

namespace rie {

using Token = rie_token;
using Status = rie_status;

/// What a failed call throws. `what()` is the library's message, which names the thing at fault. Owns its text.
class Error : public std::runtime_error {
public:
    Error(Status status, const std::string &message) : std::runtime_error(message), status_(status) {}

    /// One of RIE_ERR_*.
    Status status() const noexcept { return status_; }
    /// The status as rie.h spells it; valid for ever.
    const char *status_name() const noexcept { return rie_status_name(status_); }

private:
    Status status_;
};

/// Elements that somebody else owns, for the duration of a call: a vector, an array, a std::span, or pointer and size.
template <class T>
class View {
public:
    constexpr View() noexcept = default;
    constexpr View(const T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class Container, class Data = decltype(std::data(std::declval<const Container &>())),
              class = std::enable_if_t<std::is_convertible_v<Data, const T *>>>
    constexpr View(const Container &container) noexcept : data_(std::data(container)), size_(std::size(container)) {}

    constexpr const T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

private:
    const T *data_ = nullptr;
    std::size_t size_ = 0;
};

namespace detail {

struct Free {
    void operator()(void *handle) const noexcept { rie_free(handle); }
};

template <class T>
using Handle = std::unique_ptr<T, Free>;

/// Calls `function(arguments..., error)` with an error object of its own, so that objects can be used from any thread.
/// `Allowed` is a failure that the caller sees to.
template <Status Allowed = RIE_OK, class Function, class... Arguments>
Status call(Function function, Arguments... arguments) {
    const Handle<rie_error> error(rie_error_new());
    const Status status = function(arguments..., error.get());
    if (status < 0 && status != Allowed) {
        throw Error(status, rie_error_message(error.get()));
    }
    return status;
}

/// What `function(arguments..., out, error)` makes.
template <class T, class Function, class... Arguments>
Handle<T> make(Function function, Arguments... arguments) {
    T *out = nullptr;
    call(function, arguments..., &out);
    return Handle<T>(out);
}

/// What `function(arguments..., data, capacity, length, error)` writes, in a buffer that is made larger until it fits.
template <class Buffer, class Function, class... Arguments>
Buffer fill(std::size_t length, Function function, Arguments... arguments) {
    constexpr Status too_small = RIE_ERR_BUFFER_TOO_SMALL;
    Buffer buffer;
    do {
        buffer.resize(length);
    } while (call<too_small>(function, arguments..., buffer.data(), buffer.size(), &length) == too_small);
    buffer.resize(length);
    return buffer;
}

inline std::int64_t get_int(const void *handle, std::int32_t key) {
    std::int64_t value = 0;
    call(rie_get_int, handle, key, &value);
    return value;
}

inline std::string get_str(const void *handle, std::int32_t key) { return fill<std::string>(64, rie_get_str, handle, key); }

/// A range for one `for` loop over what `source.next(value)` gives, until it says false. Nothing is made ahead.
template <class Source>
class Range {
public:
    struct End {};

    class Iterator {
    public:
        explicit Iterator(Range &range) : range_(range) { ++*this; }
        const auto &operator*() const { return range_.value_; }
        void operator++() { more_ = range_.source_.next(range_.value_); }
        bool operator!=(End) const noexcept { return more_; }

    private:
        Range &range_;
        bool more_ = false;
    };

    explicit Range(Source source) : source_(std::move(source)) {}
    Iterator begin() { return Iterator(*this); }
    End end() const noexcept { return {}; }

private:
    Source source_;
    typename Source::value_type value_{};
};

}  // namespace detail

/// Hears a message of the level RIE_LOG_*.
using Log = std::function<void(std::int32_t level, std::string_view message)>;

namespace detail {
inline void say(void *userdata, std::int32_t level, const char *message) {
    try {
        (*static_cast<const Log *>(userdata))(level, message);
    } catch (...) { // no exception may pass through C, and a message that is lost is no failure
    }
}
}  // namespace detail

/// Gives the process's messages from `min_level` on to `log`, which is kept until the next call; an empty one ends it. It runs in
/// the threads that use the library, in several at once, and must not call this function. Threads: any.
inline void set_log(Log log, std::int32_t min_level = RIE_LOG_INFO) {
    // Never destroyed: threads may be using the library while the program ends.
    static auto &mutex = *new std::mutex;
    static auto &current = *new std::unique_ptr<Log>;
    auto next = log ? std::make_unique<Log>(std::move(log)) : nullptr;
    const std::lock_guard<std::mutex> lock(mutex);
    detail::call(rie_log_set, next ? detail::say : nullptr, next.get(), min_level);
    current = std::move(next); // nobody is in the one before any more
}

/// The files of a model by their names in a model directory, wherever they are. Owns its handle; models live on without it.
/// Threads: one call at a time.
class Source {
public:
    /// Throws std::bad_alloc if memory is exhausted.
    Source() : handle_(rie_source_new()) {
        if (!handle_) {
            throw std::bad_alloc();
        }
    }

    /// Adds the file at `path`. This and the next three return this object, to add several in a row.
    Source &add_path(const std::string &name, const std::string &path) {
        detail::call(rie_source_add_path, get(), name.c_str(), path.c_str());
        return *this;
    }

    /// Adds bytes, a vector or a string, and keeps them as long as a model needs them.
    template <class Bytes>
    Source &add_memory(const std::string &name, Bytes bytes) {
        static_assert(sizeof(*std::data(bytes)) == 1, "bytes are needed");
        auto *kept = new Bytes(std::move(bytes));
        const auto destroy = [](void *userdata) { delete static_cast<Bytes *>(userdata); };
        return lend_memory(name, std::data(*kept), std::size(*kept), destroy, kept);
    }

    /// Lends bytes until `release(userdata)` is called, once, also if this fails; without it, while a model may need them.
    Source &lend_memory(const std::string &name, const void *data, std::size_t size, rie_release_fn release = nullptr,
                        void *userdata = nullptr) {
        detail::call(rie_source_add_memory, get(), name.c_str(), data, size, release, userdata);
        return *this;
    }

    /// Adds `size` bytes of an open file from `offset` on, 0: all. The descriptor is duplicated.
    Source &add_fd(const std::string &name, int fd, std::uint64_t offset = 0, std::uint64_t size = 0) {
        detail::call(rie_source_add_fd, get(), name.c_str(), fd, offset, size);
        return *this;
    }

    rie_source *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<rie_source> handle_;
};

/// Options by the keys RIE_OPT_* of rie.h; each function reads those that concern it and copies the values.
class Options {
public:
    /// Called during a load or a save with the bytes done, of how many; false cancels it. What it throws, the call throws.
    using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

    /// Throws std::bad_alloc if memory is exhausted.
    Options() : handle_(rie_options_new()) {
        if (!handle_) {
            throw std::bad_alloc();
        }
    }

    /// Sets a whole number, a float or a path, whichever the key takes. Returns this object, to set several in a row.
    template <class Value>
    Options &set(std::int32_t key, const Value &value) {
        if constexpr (std::is_integral_v<Value>) {
            detail::call(rie_options_set_int, get(), key, static_cast<std::int64_t>(value));
        } else if constexpr (std::is_floating_point_v<Value>) {
            detail::call(rie_options_set_float, get(), key, static_cast<double>(value));
        } else {
            detail::call(rie_options_set_str, get(), key, std::string(value).c_str());
        }
        return *this;
    }

    /// Keeps `progress` for the loads and saves with these options; it runs in the thread that calls.
    Options &on_progress(Progress progress) {
        auto reporter = std::make_unique<Reporter>(Reporter{std::move(progress), nullptr});
        detail::call(rie_options_set_progress, get(), report, reporter.get());
        reporter_ = std::move(reporter);
        return *this;
    }

    rie_options *get() const noexcept { return handle_.get(); }

private:
    friend class Model;
    struct Reporter {
        Progress progress;
        std::exception_ptr thrown;
    };

    /// Makes a call with these options; what the progress function threw meanwhile is thrown instead of its error.
    template <class Call>
    auto hear(Call call) const {
        try {
            return call();
        } catch (const Error &) {
            if (reporter_ && reporter_->thrown) {
                std::rethrow_exception(std::exchange(reporter_->thrown, nullptr));
            }
            throw;
        }
    }

    /// No exception may pass through C: it waits here until the call has returned.
    static std::int32_t report(void *userdata, std::uint64_t done, std::uint64_t total) {
        auto *reporter = static_cast<Reporter *>(userdata);
        try {
            return reporter->progress(done, total) ? 0 : 1;
        } catch (...) {
            reporter->thrown = std::current_exception();
            return 1;
        }
    }

    detail::Handle<rie_options> handle_;
    std::unique_ptr<Reporter> reporter_; // the library holds its address
};

/// Describes the model at `path` as JSON, without mapping its weights. Threads: any.
inline std::string inspect(const std::string &path, const Options &options = {}) {
    return detail::fill<std::string>(1 << 14, rie_inspect, path.c_str(), options.get());
}

/// The same of the model whose files `source` has.
inline std::string inspect(const Source &source, const Options &options = {}) {
    return detail::fill<std::string>(1 << 14, rie_inspect_source, source.get(), options.get());
}

/// A loaded model. Owns its handle; sessions and streams live on without it. Threads: shared freely.
class Model {
public:
    /// Loads a directory or a .safetensors file. Throws RIE_ERR_CANCELLED if the progress function says so.
    explicit Model(const std::string &path, const Options &options = {})
        : handle_(options.hear([&] { return detail::make<rie_model>(rie_model_load, path.c_str(), options.get()); })) {}

    /// Loads the model whose files `source` has.
    explicit Model(const Source &source, const Options &options = {})
        : handle_(options.hear([&] {
              return detail::make<rie_model>(rie_model_load_source, source.get(), options.get());
          })) {}

    /// Saves it to the new directory `path` with the weights as they are in memory, quantized or not.
    void save(const std::string &path, const Options &options = {}) const {
        options.hear([&] { detail::call(rie_model_save, get(), path.c_str(), options.get()); });
    }

    /// A fact by its key RIE_INFO_*.
    std::int64_t get_int(std::int32_t key) const { return detail::get_int(get(), key); }
    std::string get_str(std::int32_t key) const { return detail::get_str(get(), key); }

    /// The tokens of UTF-8 text. `flags`: RIE_TEXT_ADD_SPECIAL, RIE_TEXT_PARSE_SPECIAL.
    std::vector<Token> tokenize(std::string_view text, std::uint32_t flags = RIE_TEXT_ADD_SPECIAL) const {
        return detail::fill<std::vector<Token>>(text.size() + 16, rie_tokenize, get(), text.data(), text.size(), flags);
    }

    /// The text of tokens. `flags`: RIE_TEXT_SKIP_SPECIAL.
    std::string detokenize(View<Token> tokens, std::uint32_t flags = 0) const {
        return detail::fill<std::string>(tokens.size() * 8, rie_detokenize, get(), tokens.data(), tokens.size(), flags);
    }

    /// The prompt for a conversation, as text; `json` as rie_chat_render takes it.
    std::string chat_render(std::string_view json) const {
        return detail::fill<std::string>(json.size() * 2, rie_chat_render, get(), json.data(), json.size());
    }

    /// The prompt for a conversation, as tokens; what users typed forges no special token.
    std::vector<Token> chat_tokenize(std::string_view json, std::uint32_t flags = 0) const {
        return detail::fill<std::vector<Token>>(json.size() + 64, rie_chat_tokenize, get(), json.data(), json.size(), flags);
    }

    rie_model *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<rie_model> handle_;
};

/// Chooses tokens from logits. Owns its handle. Threads: one call at a time.
class Sampler {
public:
    explicit Sampler(const Options &options) : handle_(detail::make<rie_sampler>(rie_sampler_new, options.get())) {}

    /// Adds `bias` to a token's logit from now on; minus infinity forbids the token.
    void set_bias(Token token, float bias) {
        detail::call(rie_sampler_set_bias, get(), token, bias);
    }

    /// Give it as RIE_OPT_SEED to get the same choices again.
    std::int64_t seed() const { return detail::get_int(get(), RIE_INFO_SEED); }
    rie_sampler *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<rie_sampler> handle_;
};

/// Turns tokens into text as they come, never cutting a character. Owns its handle. Threads: one call at a time.
class TextStream {
public:
    explicit TextStream(const Model &model, std::uint32_t flags = RIE_TEXT_SKIP_SPECIAL)
        : handle_(detail::make<rie_text_stream>(rie_text_stream_new, model.get(), flags)) {}

    /// The text that `token` makes certain, maybe none.
    std::string push(Token token) {
        return detail::fill<std::string>(64, rie_text_stream_push, get(), token);
    }

    /// What is held back at the end; the stream is then as new.
    std::string flush() { return push(-1); }

    /// Takes a prompt whose text is not wanted, but on which the text of the next tokens may depend.
    void skip(View<Token> tokens) {
        for (std::size_t i = 0; i < tokens.size(); i++) {
            push(tokens.data()[i]);
        }
    }

    rie_text_stream *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<rie_text_stream> handle_;
};

namespace detail {
struct TokenSource;
struct TextSource;
}  // namespace detail

/// The tokens of one generation, each made when the loop asks for it. Owns nothing; for one loop.
using Tokens = detail::Range<detail::TokenSource>;
/// The text of one generation, piece by piece; a piece may be empty. Owns nothing; for one loop.
using Text = detail::Range<detail::TextSource>;

/// A sequence of tokens and what is computed of it. Owns its handle. Threads: one call at a time, except `cancel`.
class Session {
public:
    explicit Session(const Model &model, const Options &options = {})
        : handle_(detail::make<rie_session>(rie_session_new, model.get(), options.get())) {}

    /// Queues tokens; computes nothing.
    void append(View<Token> tokens) {
        detail::call(rie_session_append, get(), tokens.data(), tokens.size());
    }

    /// Evaluates at most so many queued tokens, 0: all. True if some are left.
    bool eval(std::size_t max_tokens = 0) {
        return detail::call(rie_session_eval, get(), max_tokens) == RIE_PENDING;
    }

    /// One step: chooses the next token, the likeliest without a sampler. False if it is one that ends generation.
    bool step(Token &token, const Sampler *sampler = nullptr) {
        return detail::call(rie_decode_step, get(), sampler ? sampler->get() : nullptr, &token) == RIE_OK;
    }

    /// A range of at most `count` new tokens, for one loop; the session and the sampler must outlive it.
    Tokens tokens(std::size_t count, const Sampler *sampler = nullptr);
    /// The same as pieces of text through `stream`, which must outlive it too.
    Text text(TextStream &stream, std::size_t count, const Sampler *sampler = nullptr);

    /// The logits after the last token, one for each id.
    std::vector<float> logits(const Model &model) {
        std::vector<float> logits(static_cast<std::size_t>(model.get_int(RIE_INFO_VOCAB_SIZE)));
        detail::call(rie_session_logits, get(), logits.data(), logits.size());
        return logits;
    }

    /// The log-probability of each of `tokens` after the session's; the session stays as it is.
    std::vector<float> score(View<Token> tokens) {
        std::vector<float> logprobs(tokens.size());
        detail::call(rie_session_score, get(), tokens.data(), tokens.size(), logprobs.data());
        return logprobs;
    }

    /// All tokens, evaluated and queued.
    std::vector<Token> history() const {
        return detail::fill<std::vector<Token>>(256, rie_session_tokens, get());
    }

    /// Forgets all tokens from position `keep` on.
    void truncate(std::size_t keep) {
        detail::call(rie_session_truncate, get(), keep);
    }

    /// A new session with the same tokens and options that shares what is computed; independent from then on.
    Session fork() const {
        return Session(detail::make<rie_session>(rie_session_fork, get()));
    }

    /// The session as bytes for `load`, in this process or another.
    std::vector<std::uint8_t> save() const {
        return detail::fill<std::vector<std::uint8_t>>(0, rie_session_save, get());
    }

    /// Takes the place of what the session holds; on failure it stays as it was.
    void load(View<std::uint8_t> bytes) {
        detail::call(rie_session_load, get(), bytes.data(), bytes.size());
    }

    /// While on, computing throws RIE_ERR_CANCELLED, soon also in the call that is running. Threads: any, at any time.
    void cancel(bool on = true) {
        detail::call(rie_session_cancel, get(), on ? 1 : 0);
    }

    /// A fact by its key RIE_INFO_*.
    std::int64_t get_int(std::int32_t key) const { return detail::get_int(get(), key); }
    std::string get_str(std::int32_t key) const { return detail::get_str(get(), key); }
    rie_session *get() const noexcept { return handle_.get(); }

private:
    explicit Session(detail::Handle<rie_session> handle) : handle_(std::move(handle)) {}

    detail::Handle<rie_session> handle_;
};

namespace detail {

struct TokenSource {
    using value_type = Token;
    Session *session;
    const Sampler *sampler;
    std::size_t left;

    bool next(Token &token) {
        if (left == 0 || !session->step(token, sampler)) {
            left = 0;
            return false;
        }
        left--;
        return true;
    }
};

struct TextSource {
    using value_type = std::string;
    TokenSource tokens;
    TextStream *stream;
    bool flushed = false;

    bool next(std::string &piece) {
        Token token = 0;
        if (tokens.next(token)) {
            piece = stream->push(token);
            return true;
        }
        if (flushed) {
            return false;
        }
        flushed = true;
        piece = stream->flush();
        return !piece.empty();
    }
};

}  // namespace detail

inline Tokens Session::tokens(std::size_t count, const Sampler *sampler) {
    return Tokens(detail::TokenSource{this, sampler, count});
}

inline Text Session::text(TextStream &stream, std::size_t count, const Sampler *sampler) {
    return Text(detail::TextSource{{this, sampler, count}, &stream});
}

/// One step of each session in one pass over the weights. `samplers` may be empty: the likeliest tokens.
/// Returns for each RIE_OK, RIE_END, RIE_PENDING or an error of its own, and its token, or -1.
inline std::vector<std::pair<Status, Token>> decode_batch(View<rie_session *> sessions, View<rie_sampler *> samplers = {}) {
    if (samplers.size() != 0 && samplers.size() != sessions.size()) {
        throw Error(RIE_ERR_INVALID_ARGUMENT, "rie::decode_batch: as many samplers as sessions, or none, are needed");
    }
    std::vector<Token> tokens(sessions.size());
    std::vector<Status> statuses(sessions.size());
    detail::call(rie_decode_batch, sessions.data(), samplers.data(), sessions.size(), tokens.data(), statuses.data());
    std::vector<std::pair<Status, Token>> steps;
    for (std::size_t i = 0; i < tokens.size(); i++) {
        steps.emplace_back(statuses[i], tokens[i]);
    }
    return steps;
}

}  // namespace rie

#endif  // RIE_HPP
