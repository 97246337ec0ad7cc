// The tour of tests/ffi/c/tour.c with include/rie.hpp.
//
//     tour MODEL_DIRECTORY
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <thread>

#include <unistd.h>

#include "rie.hpp"

static_assert(!std::is_copy_constructible_v<rie::Model> && std::is_nothrow_move_constructible_v<rie::Model>);
static_assert(!std::is_copy_constructible_v<rie::Session> && std::is_nothrow_move_assignable_v<rie::Session>);

static void print_ids(const char *name, rie::View<rie::Token> ids) {
    std::cout << name << ":";
    for (std::size_t i = 0; i < ids.size(); i++) {
        std::cout << " " << ids.data()[i];
    }
    std::cout << "\n";
}

static std::vector<rie::Token> generate(rie::Session &session, std::size_t count) {
    std::vector<rie::Token> ids;
    for (const rie::Token id : session.tokens(count)) {
        ids.push_back(id);
    }
    return ids;
}

// The name of the status that `call` throws.
template <class Call>
static std::string failure(Call call) {
    try {
        call();
    } catch (const rie::Error &error) {
        return error.status_name();
    }
    return "no error";
}

// A prompt that takes a while, stopped by another thread in the middle of the call.
static void interrupt(const std::string &path) {
    const rie::Model model(path, rie::Options().set(RIE_OPT_ISA, RIE_ISA_SCALAR).set(RIE_OPT_THREADS, 1));
    std::vector<rie::Token> prompt(511);
    std::iota(prompt.begin(), prompt.end(), 1);
    rie::Session session(model);
    session.append(prompt);
    std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        session.cancel();
    });
    const std::string name = failure([&] { session.eval(); });
    other.join();
    std::cout << "interrupted: " << name << "\n";
}

static void require(bool holds, const char *what) {
    if (!holds) {
        throw std::runtime_error(std::string("does not hold: ") + what);
    }
}

// What only C++ has: moves, exceptions through a callback, and the calls that the tour does not need.
static void more(const std::string &path, rie::Session &session) {
    rie::Options options;
    options.on_progress([](auto, auto) -> bool { throw std::domain_error("from the progress function"); });
    try {
        rie::Model model(path, options);
        require(false, "an exception of the progress function comes out of the load");
    } catch (const std::domain_error &) {
    }
    options.on_progress([](auto, auto) { return false; });
    require(failure([&] { rie::Model(path, options); }) == "RIE_ERR_CANCELLED", "progress can cancel a load");

    const auto saved = std::filesystem::temp_directory_path() / ("rie-tour-" + std::to_string(::getpid()));
    const rie::Model quantized(path, rie::Options().set(RIE_OPT_WEIGHTS, RIE_WEIGHTS_INT4));
    require(failure([&] { quantized.save(saved.string(), options); }) == "RIE_ERR_CANCELLED", "progress can cancel a save");
    quantized.save(saved.string());
    require(rie::Model(saved.string()).get_int(RIE_INFO_WEIGHTS) == RIE_WEIGHTS_INT4, "a saved model loads as it was");
    require(failure([&] { quantized.save(saved.string()); }) == "RIE_ERR_IO", "a saved model is not overwritten");
    std::filesystem::remove_all(saved);

    rie::Session moved = std::move(session);
    rie::Token token = 0;
    require(failure([&] { session.step(token); }) == "RIE_ERR_INVALID_ARGUMENT",
            "a session that was moved from only fails");
    session = std::move(moved);

    const rie::Model model(path);
    const std::size_t length = session.history().size();
    const std::vector<float> logits = session.logits(model);
    const float best = session.score(std::vector<rie::Token>{generate(session, 1)})[0];
    require(logits.size() == 3072 && std::isfinite(best), "logits and scores are there");
    session.truncate(length);
    require(session.history().size() == length, "truncated");
    require(failure([&] { session.truncate(length + 1); }) == "RIE_ERR_INVALID_ARGUMENT", "no tokens beyond the last");

    rie::Session other = session.fork();
    rie::Sampler sampler(rie::Options().set(RIE_OPT_TEMPERATURE, 0.5).set(RIE_OPT_SEED, 7));
    require(sampler.seed() == 7, "the seed is the one set");
    const auto eos = static_cast<rie::Token>(model.get_int(RIE_INFO_EOS_TOKEN));
    sampler.set_bias(eos, 1e6f);
    rie::TextStream stream(model);
    rie::Text text = other.text(stream, 9, &sampler);
    require(!(text.begin() != text.end()) && other.history().size() == length, "an end-of-generation token ends the range");
    sampler.set_bias(eos, 0);
    require(!(text.begin() != text.end()), "a range that has ended stays ended");
    sampler.set_bias(eos, 1e6f);
    rie_session *const both[] = {session.get(), other.get()};
    rie_sampler *const samplers[] = {nullptr, sampler.get()};
    const auto steps = rie::decode_batch(both, samplers);
    require(steps.size() == 2 && steps[0].first == RIE_OK && steps[1].first == RIE_END, "a batch of two");
    require(failure([&] { model.chat_render("{\"messages\": []}"); }) != "no error", "the model has no chat template");
}

int main(int argc, char **argv) try {
    if (argc != 2) {
        std::cerr << "usage: tour MODEL_DIRECTORY\n";
        return 2;
    }
    const std::string path = argv[1];
    std::cout << "inspect: " << rie::inspect(path).size() << " bytes of JSON\n";
    const rie::Model model(path);
    std::cout << "model: " << model.get_str(RIE_INFO_ARCHITECTURE) << ", " << model.get_int(RIE_INFO_LAYERS) << " layers, "
              << model.get_int(RIE_INFO_VOCAB_SIZE) << " ids\n";
    const auto greeting = model.tokenize(u8"naïve 🦀", 0);
    print_ids("greeting", greeting);
    std::cout << "again: " << model.detokenize(greeting) << "\n";
    const auto prompt = model.tokenize("Rust is a systems programming language that");
    print_ids("prompt", prompt);

    rie::Session session(model);
    session.append(prompt);
    print_ids("ids", generate(session, 32));
    session.truncate(prompt.size());
    rie::TextStream stream(model);
    stream.skip(prompt);
    std::cout << "text:";
    for (const std::string &piece : session.text(stream, 32)) {
        std::cout << piece;
    }
    std::cout << "\n";

    rie::Session branch(model);
    branch.append(prompt);
    print_ids("before", generate(branch, 5));
    branch.cancel();
    std::cout << "cancelled: " << failure([&] { generate(branch, 1); }) << "\n";
    branch.cancel(false);
    print_ids("resumed", generate(branch, 3));
    interrupt(path);

    const auto saved = branch.save();
    rie::Session fork = branch.fork();
    print_ids("fork", generate(fork, 4));
    rie::Session loaded(model);
    loaded.load(saved);
    print_ids("loaded", generate(loaded, 4));
    try {
        rie::Model(u8"/no/such/modèle");
    } catch (const rie::Error &error) {
        std::cout << "error: " << error.status_name() << ": " << error.what() << "\n";
    }
    more(path, branch);
    return 0;
} catch (const std::exception &error) {
    std::cerr << "tour: " << error.what() << "\n";
    return 1;
}
