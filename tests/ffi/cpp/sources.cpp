// Sources and the log of include/rie.hpp.
//
//     sources MODEL_DIRECTORY
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>

#include <fcntl.h>
#include <unistd.h>

#include "rie.hpp"

static_assert(!std::is_copy_constructible_v<rie::Source> && std::is_nothrow_move_assignable_v<rie::Source>);

static int failures = 0;

static void expect(bool ok, const char *what) {
    if (!ok) {
        std::cout << "not so: " << what << "\n";
        failures++;
    }
}

static std::string contents(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

static std::vector<float> logits(const rie::Model &model) {
    rie::Session session(model);
    session.append(model.tokenize("Rust is a systems programming language"));
    return session.logits(model);
}

static rie::Status failure(const rie::Source &source) {
    try {
        rie::Model model(source);
    } catch (const rie::Error &error) {
        return error.status();
    }
    return RIE_OK;
}

int main(int argc, char **argv) {
    expect(argc == 2, "one argument");
    const std::string directory = argv[1];
    const auto path = [&](const std::string &name) { return directory + "/" + name; };
    const rie::Model expected(directory);

    std::vector<std::string> messages;
    rie::set_log([&](std::int32_t level, std::string_view message) {
        expect(level == RIE_LOG_INFO, "a level");
        messages.emplace_back(message);
        throw std::runtime_error("dropped");
    });
    int returned = 0;
    const std::string weights = contents(path("model.safetensors"));
    rie::Source source;
    expect(failure(source) == RIE_ERR_IO, "an empty source is no model");
    const int fd = open(path("tokenizer.json").c_str(), O_RDONLY);
    source.add_memory("config.json", contents(path("config.json")))
        .lend_memory("model.safetensors", weights.data(), weights.size(), [](void *n) { ++*static_cast<int *>(n); }, &returned)
        .add_fd("tokenizer.json", fd)
        .add_path("generation_config.json", path("generation_config.json"));
    close(fd);
    try {
        source.add_memory("config.json", std::vector<std::uint8_t>(3)); // it is destroyed all the same
        expect(false, "a name is added twice");
    } catch (const rie::Error &error) {
        expect(error.status() == RIE_ERR_INVALID_ARGUMENT, "a name is there once");
    }
    {
        const rie::Model model(source, rie::Options().set(RIE_OPT_MAP, 0));
        expect(rie::inspect(source).find("\"architecture\"") != std::string::npos, "a description");
        source = rie::Source();
        expect(logits(model) == logits(expected), "the same logits");
        expect(returned == 0, "the model uses the memory");
    }
    expect(returned == 1, "the memory is given back once");
    expect(!messages.empty() && messages[0].find("source: loaded: ") == 0, "a message");
    rie::set_log(nullptr);
    const std::size_t before = messages.size();
    rie::Model again(directory);
    expect(messages.size() == before, "nobody listens");
    std::cout << (failures == 0 ? "ok\n" : "failed\n");
    return failures != 0;
}
