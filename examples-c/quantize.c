/* Quantizes a model and saves it. See `quantize --help`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common.h"
#include "host.h"
#include "rie.h"

static const char help[] =
    "Usage: quantize --model DIR|FILE --weights int8|int4 --out DIR [option]...\n"
    "\n"
    "Quantizes the weights of a model (F32, F16 or BF16) and saves it as a directory that loads without quantizing.\n"
    "\n"
    "  --model DIR|FILE    a Hugging Face model directory, or a .safetensors file\n"
    "  --weights FORMAT    int8 (8.5 bits a weight) or int4 (4.5 bits; embedding and output matrix as int8)\n"
    "  --out DIR           where to save it: a name that is free, or an empty directory\n"
    "  --threads N         threads (default 0: one for each physical core)\n"
    "  --help              print this text\n"
    "\n"
    "Exit status: 0 done, 1 the library reported an error, 2 wrong command line, 130 interrupted by Ctrl-C; then nothing\n"
    "is left at DIR.\n";

/* Bytes of the weights in the model's files, by the library's description of them. */
static double stored_bytes(const char *path, rie_error *error) {
    rie_options *as_is = rie_options_new();
    rie_model *model = load_model(path, as_is, error); /* maps the files, and reads none of the weights */
    const double bytes = (double)get_int(model, RIE_INFO_WEIGHT_BYTES, error);
    rie_free(model);
    rie_free(as_is);
    return bytes;
}

int main(int argc, char **argv) {
    const char *path = NULL, *weights = NULL, *out = NULL;
    int64_t threads = 0;
    const struct arg args[] = {{"--model", ARG_STR, &path},
                               {"--weights", ARG_STR, &weights},
                               {"--out", ARG_STR, &out},
                               {"--threads", ARG_INT, &threads},
                               {NULL, ARG_FLAG, NULL}};
    parse_args(argc, argv, args, help);
    if (path == NULL || weights == NULL || out == NULL) {
        fail_usage("--model, --weights and --out are needed");
    }
    const int32_t format = parse_weights(weights);
    if (format == RIE_WEIGHTS_AS_IS) {
        fail_usage("--weights: as-is quantizes nothing; int8 or int4 is needed");
    }
    catch_interrupt(1);
    rie_error *error = rie_error_new();
    rie_options *options = rie_options_new();
    set_int(options, RIE_OPT_THREADS, "--threads", threads, error);
    set_int(options, RIE_OPT_WEIGHTS, "--weights", format, error);

    const double before = stored_bytes(path, error), start = now();
    rie_model *model = load_model(path, options, error);
    const double loaded = now();
    save_model(model, out, options, error);
    const double saved = now(), after = (double)get_int(model, RIE_INFO_WEIGHT_BYTES, error);

    char from[32], to[32], rate[32];
    printf("%.1f M parameters, %s to %s: %.2f bits each\n", (double)get_int(model, RIE_INFO_PARAMETERS, error) / 1e6,
           human_bytes(before, from, sizeof from), human_bytes(after, to, sizeof to),
           8 * after / (double)get_int(model, RIE_INFO_PARAMETERS, error));
    printf("quantized in %.2f s (%s/s), saved to %s in %.2f s\n", loaded - start,
           human_bytes(before / (loaded - start), rate, sizeof rate), out, saved - loaded);
    rie_free(model);
    rie_free(options);
    rie_free(error);
    return 0;
}
