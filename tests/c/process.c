/* The host's process is left alone: nothing printed, no signal disposition or mask changed, no environment read, no
 * floating-point mode kept, no dependence on the locale or the working directory; and what the process cannot give (threads,
 * files) is an error.
 *
 *     process MODEL DIRECTORY     (with tokenizer.json; an empty directory to write to)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "host.h"

extern char **environ;

/* The program's own getenv and pthread_create come before those of libc, for the library too. */
static int asked_by_library, asked_by_others, threads_left = -1;

char *getenv(const char *name) {
    char *(*real)(const char *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "getenv");
    Dl_info caller;
    if (dladdr(__builtin_return_address(0), &caller) != 0 && strstr(caller.dli_fname, "librie") != NULL) {
        asked_by_library++;
    } else {
        asked_by_others++;
    }
    return real(name);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (threads_left == 0) {
        return EAGAIN;
    }
    threads_left -= threads_left > 0;
    return real(thread, attributes, start, argument);
}

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned int mode;
static mode get_mode(void) { return _mm_getcsr(); }
static void set_mode(mode m) { _mm_setcsr(m); }
static const mode default_mode = 0x1f80;
/* Flush to zero and denormals are zero; each rounding; a sticky flag; traps on. */
static const mode modes[] = {0x1f80 | 0x8040, 0x1f80 | 0x2000, 0x1f80 | 0x4000, 0x1f80 | 0x6000, 0x1f80 | 0x3f, 0x0200};
#elif defined(__aarch64__)
typedef unsigned long mode;
static mode get_mode(void) { mode m; __asm__ volatile("mrs %0, fpcr" : "=r"(m)); return m; }
static void set_mode(mode m) { __asm__ volatile("msr fpcr, %0" : : "r"(m)); }
static const mode default_mode = 0;
static const mode modes[] = {1ul << 24, 1ul << 22, 2ul << 22, 3ul << 22};
#endif

static mode expected_mode;

static void expect_mode(void) {
    const mode found = get_mode();
    set_mode(default_mode); /* for printing */
    EXPECT(found == expected_mode);
    set_mode(expected_mode);
}

static uint64_t text_hash(const rie_model *model, rie_error *error) {
    static const char text[] = "Rust is a systems programming language, 1.5 times \xf0\x9f\xa6\x80.";
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"0.1\"}], \"x\": 0.1, \"chat_template\": "
                               "\"{{ x + 0.2 }} {{ x }} {{ messages[0].content }}\"}";
    rie_token ids[128];
    char buffer[1024];
    size_t n = 0, len = 0;
    NEED(rie_tokenize(model, text, sizeof text - 1, RIE_TEXT_ADD_SPECIAL, ids, 128, &n, error), error);
    expect_mode();
    uint64_t hash = mix(1, ids, n * sizeof *ids);
    NEED(rie_detokenize(model, ids, n, 0, buffer, sizeof buffer, &len, error), error);
    expect_mode();
    hash = mix(hash, buffer, len);
    NEED(rie_chat_render(model, chat, sizeof chat - 1, buffer, sizeof buffer, &len, error), error);
    expect_mode();
    return mix(hash, buffer, len);
}

/* Everything that computes with floats, in the mode that the thread is in: loads, also quantizing ones, evaluation, sampling,
 * scoring, batches, saved sessions, text. */
static uint64_t everything(const char *path, rie_error *error) {
    uint64_t hash = 1;
    for (int32_t weights = RIE_WEIGHTS_AS_IS; weights <= RIE_WEIGHTS_INT4; weights++) {
        rie_options *options = rie_options_new();
        rie_model *model = NULL;
        rie_sampler *sampler = NULL;
        rie_session *session = NULL, *fork = NULL;
        NEED(rie_options_set_int(options, RIE_OPT_WEIGHTS, weights, error), error);
        NEED(rie_options_set_int(options, RIE_OPT_THREADS, 2, error), error);
        NEED(rie_options_set_int(options, RIE_OPT_SEED, 7, error), error);
        NEED(rie_options_set_float(options, RIE_OPT_TEMPERATURE, 0.8f, error), error);
        NEED(rie_options_set_float(options, RIE_OPT_TOP_P, 0.95f, error), error);
        expect_mode();
        NEED(rie_model_load(path, options, &model, error), error);
        expect_mode();
        NEED(rie_sampler_new(options, &sampler, error), error);
        expect_mode();
        uint64_t part = generate(model, sampler, expect_mode, error);
        hash = mix(hash, &part, sizeof part);
        part = text_hash(model, error);
        hash = mix(hash, &part, sizeof part);

        float scores[PROMPT_OF_HOST];
        NEED(rie_session_new(model, NULL, &session, error), error);
        NEED(rie_session_append(session, prompt_of_host, PROMPT_OF_HOST, error), error);
        NEED(rie_session_score(session, prompt_of_host, PROMPT_OF_HOST, scores, error), error);
        expect_mode();
        hash = mix(hash, scores, sizeof scores);
        NEED(rie_session_fork(session, &fork, error), error);
        rie_session *both[] = {session, fork};
        rie_token tokens[2];
        rie_status statuses[2];
        NEED(rie_decode_batch(both, NULL, 2, tokens, statuses, error), error);
        expect_mode();
        hash = mix(hash, tokens, sizeof tokens);
        size_t len = 0;
        EXPECT_CODE(rie_session_save(session, NULL, 0, &len, NULL), RIE_ERR_BUFFER_TOO_SMALL);
        uint8_t *saved = allocate(len);
        NEED(rie_session_save(session, saved, len, &len, error), error);
        expect_mode();
        hash = mix(hash, saved, len);
        NEED(rie_session_load(fork, saved, len, error), error);
        expect_mode();
        free(saved);
        rie_free(session), rie_free(fork), rie_free(sampler), rie_free(model), rie_free(options);
        expect_mode();
    }
    return hash;
}

static void modes_of_the_host(const char *path, uint64_t reference, rie_error *error) {
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        expected_mode = modes[i];
        set_mode(expected_mode);
        const uint64_t hash = everything(path, error);
        set_mode(default_mode);
        if (hash != reference) {
            printf("floating-point mode %#lx: other bits\n", (unsigned long)modes[i]);
            failures++;
        }
    }
    expected_mode = default_mode;
}

enum { SIGNALS = 65 };
struct signals {
    struct sigaction actions[SIGNALS];
    sigset_t mask;
};

static void get_signals(struct signals *signals) {
    memset(signals, 0, sizeof *signals);
    for (int i = 1; i < SIGNALS; i++) {
        sigaction(i, NULL, &signals->actions[i]);
    }
    pthread_sigmask(SIG_BLOCK, NULL, &signals->mask);
}

static void expect_signals(const struct signals *before) {
    struct signals now;
    get_signals(&now);
    for (int i = 1; i < SIGNALS; i++) {
        EXPECT(now.actions[i].sa_handler == before->actions[i].sa_handler);
        EXPECT(now.actions[i].sa_flags == before->actions[i].sa_flags);
        EXPECT(sigismember(&now.mask, i) == sigismember(&before->mask, i));
    }
}

/* Signals to the process reach the host's threads only: those of the library have all blocked. */
static void threads_block_signals(const char *path, rie_error *error) {
    rie_model *model = NULL;
    NEED(rie_model_load(path, NULL, &model, error), error);
    generate(model, NULL, NULL, error); /* by now they run */
    DIR *tasks = opendir("/proc/self/task");
    int seen = 0;
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        char name[300], line[256] = "";
        snprintf(name, sizeof name, "/proc/self/task/%s/status", task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(name, "r");
        int ours = 0;
        unsigned long long blocked = 0;
        while (status != NULL && fgets(line, sizeof line, status) != NULL) {
            ours |= strncmp(line, "Name:\trie-", 10) == 0;
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        if (status != NULL) {
            fclose(status);
        }
        if (ours) {
            seen++;
            EXPECT((blocked & (1ull << (SIGINT - 1))) != 0 && (blocked & (1ull << (SIGPROF - 1))) != 0);
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    EXPECT(seen > 0);
    rie_free(model);
}

/* With fds 1 and 2 on a file of its own, `act` must write nothing; errors and a panic's traces included. */
static void expect_silence(const char *dir, void (*act)(const char *, rie_error *), const char *path, rie_error *error) {
    char name[1024];
    snprintf(name, sizeof name, "%s/printed", dir);
    fflush(stdout);
    const int printed = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600), out = dup(1), err = dup(2);
    dup2(printed, 1), dup2(printed, 2);
    act(path, error);
    struct stat found = {0};
    fstat(printed, &found);
    dup2(out, 1), dup2(err, 2);
    close(out), close(err), close(printed);
    EXPECT(found.st_size == 0);
}

static void succeed_and_fail(const char *path, rie_error *error) {
    rie_model *model = NULL;
    rie_session *session = NULL;
    rie_token token = -5;
    char text[16];
    size_t len = 0;
    load_and_generate(path, NULL, error);
    rie_model_load("/no/such/model", NULL, &model, error);
    rie_model_load(path, (rie_options *)error, &model, error);
    if (rie_model_load(path, NULL, &model, error) == RIE_OK && rie_session_new(model, NULL, &session, error) == RIE_OK) {
        rie_session_append(session, &token, 1, error);
        rie_decode_step(session, NULL, &token, error);
        rie_chat_render(model, "{\"messages\": 3}", 15, text, sizeof text, &len, error);
        rie_chat_render(model, "{\"messages\": [{}], \"chat_template\": \"{{\"}", 41, text, sizeof text, &len, error);
        rie_tokenize(model, "\xff", 1, 0, &token, 1, &len, error);
    }
    rie_free(session), rie_free(model), rie_free((void *)(uintptr_t)12345);
}

/* The environment is on a page that cannot be read, so that a look at it is the end of the child. */
static void environment_is_not_read(const char *path, uint64_t reference, rie_error *error) {
    setenv("RAYON_NUM_THREADS", "1", 1), setenv("TOKENIZERS_PARALLELISM", "false", 1);
    setenv("RUST_BACKTRACE", "full", 1), setenv("RUST_MIN_STACK", "4096", 1), setenv("LC_ALL", "tr_TR.UTF-8", 1);
    const pid_t child = fork_watched();
    if (child == 0) {
        asked_by_others = 0;
        EXPECT(getenv("RUST_BACKTRACE") != NULL && asked_by_others == 1); /* the counter works */
        environ = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        asked_by_library = 0;
        EXPECT(everything(path, error) == reference);
        succeed_and_fail(path, error);
        EXPECT(asked_by_library == 0);
        printf("%d failed\n", failures);
        _exit(failures);
    }
    expect_exit(child, "the environment");
}

static void locale_changes_nothing(const char *path, uint64_t reference, rie_error *error) {
    const char *name = setlocale(LC_ALL, "de_DE.UTF-8");
    EXPECT(name != NULL);
    EXPECT(strcmp(localeconv()->decimal_point, ",") == 0);
    EXPECT(everything(path, error) == reference);
    setlocale(LC_ALL, "C");
}

/* Loaded by a relative path, the model works and is saved from another directory. */
static void directory_may_change(const char *path, const char *dir, rie_error *error) {
    char back[1024], name[1024], copy[1100];
    snprintf(name, sizeof name, "%s", path);
    snprintf(copy, sizeof copy, "%s/copy", dir);
    char *last = strrchr(name, '/');
    EXPECT(last != NULL && getcwd(back, sizeof back) != NULL);
    *last = '\0';
    rie_model *model = NULL;
    EXPECT(chdir(name) == 0);
    NEED(rie_model_load(last + 1, NULL, &model, error), error);
    EXPECT(chdir("/") == 0);
    const uint64_t hash = generate(model, NULL, NULL, error);
    EXPECT_STATUS(rie_model_save(model, copy, NULL, error), RIE_OK, error, NULL);
    EXPECT(load_and_generate(copy, NULL, error) == hash);
    rie_free(model);
    EXPECT(chdir(back) == 0);
}

static void threads_that_cannot_start(const char *path, rie_error *error) {
    static const char chat[] = "{\"messages\": [{}], \"chat_template\": \"x\"}";
    const int before = entries("/proc/self/task");
    rie_options *options = rie_options_new();
    rie_model *model = NULL;
    char text[8];
    size_t len = 0;
    NEED(rie_options_set_int(options, RIE_OPT_THREADS, 4, error), error);
    for (threads_left = 0; threads_left < 4;) {
        const int allowed = threads_left;
        EXPECT_STATUS(rie_model_load(path, options, &model, error), RIE_ERR_NO_MEMORY, error, "thread");
        EXPECT(model == NULL && threads_left == 0 && threads_after_joining(before) == before);
        threads_left = allowed + 1;
    }
    NEED(rie_model_load(path, options, &model, error), error);
    EXPECT(threads_left == 0);
    EXPECT_STATUS(rie_chat_render(model, chat, sizeof chat - 1, text, sizeof text, &len, error), RIE_ERR_NO_MEMORY, error,
                  "thread");
    threads_left = -1;
    EXPECT_STATUS(rie_chat_render(model, chat, sizeof chat - 1, text, sizeof text, &len, error), RIE_OK, error, NULL);
    rie_free(model), rie_free(options);
}

/* With only so many files open at once a load works, or says that a file cannot be opened, and leaves none open. */
static void few_files(const char *path, rie_error *error) {
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    const int open_before = entries("/proc/self/fd");
    int refused = 0, loaded = 0;
    for (rlim_t limit = 0; limit < 32; limit++) {
        const struct rlimit few = {limit, before.rlim_max};
        rie_model *model = NULL;
        setrlimit(RLIMIT_NOFILE, &few);
        const rie_status status = rie_model_load(path, NULL, &model, error);
        setrlimit(RLIMIT_NOFILE, &before);
        EXPECT(status == RIE_OK || status == RIE_ERR_IO);
        refused += status == RIE_ERR_IO;
        loaded += status == RIE_OK;
        rie_free(model);
    }
    EXPECT(refused > 0 && loaded > 0);
    EXPECT(entries("/proc/self/fd") == open_before);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("process MODEL DIRECTORY");
        return 2;
    }
    struct signals before;
    get_signals(&before);
    expected_mode = default_mode;
    rie_error *error = rie_error_new();
    const uint64_t reference = everything(argv[1], error);
    expect_signals(&before);
    EXPECT(everything(argv[1], error) == reference);
    modes_of_the_host(argv[1], reference, error);
    threads_block_signals(argv[1], error);
    expect_silence(argv[2], succeed_and_fail, argv[1], error);
    environment_is_not_read(argv[1], reference, error);
    locale_changes_nothing(argv[1], reference, error);
    directory_may_change(argv[1], argv[2], error);
    threads_that_cannot_start(argv[1], error);
    few_files(argv[1], error);
    expect_signals(&before);
    rie_free(error);
    return result();
}
