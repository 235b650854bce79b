/* Translates the lines of the standard input with a SavedModel. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "translator.h"

/* The graph decodes them in batches of bounded size, sorted by length: the
 * more lines a call has, the less padding. */
#define LINES_PER_CALL 1024
#define MOST_LINES 1000000

/* Those of the libraries in OPERATIONS_FOLDER that a translator may need. */
static const char *const OPERATIONS[] = {
    "_fast_sentencepiece_tokenizer.so",
    "_sentencepiece_tokenizer.so",
};

static const char USAGE[] =
    "Usage: translate [-s] [-n LINES] [-t FOLDER] SAVED_MODEL\n"
    "\n"
    "Translates the lines of the standard input, each to one line, with the\n"
    "best hypothesis of a SavedModel that export_saved_model has written.\n"
    "\n"
    "  -s         put its score, in nats, and a tab before each line\n"
    "  -n LINES   translate so many lines in a call (default: 1024, or 1 at\n"
    "             a terminal)\n"
    "  -t FOLDER  where tensorflow-text's operations are (default:\n"
    "             " OPERATIONS_FOLDER ")\n"
    "  -h         print this\n";

enum { FAILURE = 1, BAD_INPUT = 2 };

struct options {
    bool with_scores;
    size_t lines_per_call;
    const char *operations_folder;
    const char *saved_model;
};

struct lines {
    char **buffers;     /* of getline, which reuses them */
    size_t *capacities; /* of the buffers */
    struct text *texts; /* what is in the buffers, without line ends */
    size_t first;       /* number of the first line in the input, from 1 */
    size_t count;
};

__attribute__((format(printf, 2, 3)))
static int fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("translate: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}

/* Bytes of the UTF-8 character that a text begins with, 0 if there is none. */
static size_t character_size(const unsigned char *text, size_t size)
{
    unsigned char lead = text[0];
    size_t length = lead < 0x80   ? 1
                    : lead < 0xc2 ? 0
                    : lead < 0xe0 ? 2
                    : lead < 0xf0 ? 3
                    : lead < 0xf5 ? 4
                                  : 0;
    if (length > size)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    if ((lead == 0xe0 && text[1] < 0xa0) || /* too long a form */
        (lead == 0xed && text[1] > 0x9f) || /* half of a UTF-16 pair */
        (lead == 0xf0 && text[1] < 0x90) || /* too long a form */
        (lead == 0xf4 && text[1] > 0x8f))   /* above U+10FFFF */
        return 0;
    return length;
}

static int check_utf8(struct text text, size_t line)
{
    const unsigned char *data = (const unsigned char *)text.data;
    for (size_t place = 0; place < text.size;) {
        size_t size = character_size(data + place, text.size - place);
        if (size == 0)
            return fail(BAD_INPUT,
                        "the input must be UTF-8; line %zu, byte %zu is "
                        "0x%02x",
                        line, place + 1, data[place]);
        place += size;
    }
    return 0;
}

/* Takes the line end away, and the mark that some editors put at the start. */
static struct text content_of(const char *data, size_t size, size_t line)
{
    static const char MARK[] = "\xef\xbb\xbf";
    while (size > 0 && (data[size - 1] == '\n' || data[size - 1] == '\r'))
        size--;
    if (line == 1 && size >= 3 && memcmp(data, MARK, 3) == 0) {
        data += 3;
        size -= 3;
    }
    return (struct text){data, size};
}

/* Reads the next lines, at most so many; none at the end of the input. */
static int read_lines(FILE *input, struct lines *lines, size_t most)
{
    lines->first += lines->count;
    for (lines->count = 0; lines->count < most; lines->count++) {
        size_t i = lines->count, line = lines->first + i;
        errno = 0;
        ssize_t size =
            getline(&lines->buffers[i], &lines->capacities[i], input);
        if (size < 0)
            return feof(input) ? 0
                               : fail(FAILURE, "cannot read the input: %s",
                                      strerror(errno));
        lines->texts[i] = content_of(lines->buffers[i], (size_t)size, line);
        int code = check_utf8(lines->texts[i], line);
        if (code != 0)
            return code;
    }
    return 0;
}

/* Lines stay lines, and columns columns: vocabularies with bytes can spell what
   separates them. */
static void write_line(struct text text, const char *separators, FILE *output)
{
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        putc(c != '\0' && strchr(separators, c) != NULL ? ' ' : c, output);
    }
    putc('\n', output);
}

static int translate_lines(const struct translator *translator,
                           const struct lines *lines, bool with_scores,
                           TF_Status *status)
{
    struct translations found =
        translate(translator, lines->texts, lines->count, status);
    if (TF_GetCode(status) != TF_OK)
        return fail(FAILURE, "cannot translate lines %zu to %zu: %s",
                    lines->first, lines->first + lines->count - 1,
                    TF_Message(status));
    for (size_t i = 0; i < lines->count; i++) {
        if (with_scores)
            printf("%.4f\t", (double)score_of(&found, i));
        write_line(translation_of(&found, i), with_scores ? "\n\r\t" : "\n\r",
                   stdout);
    }
    clear_translations(&found);
    /* `fflush` does not know of what was lost while the buffer filled up. */
    if (fflush(stdout) != 0 || ferror(stdout))
        return fail(FAILURE, "cannot write the output: %s", strerror(errno));
    return 0;
}

static int translate_input(const struct translator *translator,
                           const struct options *options, TF_Status *status)
{
    size_t most = options->lines_per_call;
    struct lines lines = {
        .buffers = calloc(most, sizeof *lines.buffers),
        .capacities = calloc(most, sizeof *lines.capacities),
        .texts = calloc(most, sizeof *lines.texts),
        .first = 1,
    };
    int code = 0;
    if (!lines.buffers || !lines.capacities || !lines.texts)
        code = fail(FAILURE, "out of memory for %zu lines", most);
    else
        do {
            code = read_lines(stdin, &lines, most);
            if (code == 0 && lines.count > 0)
                code = translate_lines(translator, &lines,
                                       options->with_scores, status);
        } while (code == 0 && lines.count == most);
    for (size_t i = 0; lines.buffers && i < most; i++)
        free(lines.buffers[i]);
    free(lines.buffers);
    free(lines.capacities);
    free(lines.texts);
    return code;
}

static int load_all_operations(const char *folder, TF_Status *status)
{
    char path[4096];
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof OPERATIONS[0]; i++) {
        int size = snprintf(path, sizeof path, "%s/%s", folder, OPERATIONS[i]);
        if (size < 0 || (size_t)size >= sizeof path)
            return fail(BAD_INPUT, "the folder's name is too long: %s", folder);
        load_operations(path, status);
        if (TF_GetCode(status) != TF_OK)
            return fail(BAD_INPUT,
                        "cannot load tensorflow-text's operations: %s",
                        TF_Message(status));
    }
    return 0;
}

static int run(const struct options *options)
{
    TF_Status *status = TF_NewStatus();
    int code = load_all_operations(options->operations_folder, status);
    if (code == 0) {
        struct translator *translator =
            new_translator(options->saved_model, status);
        code = translator != NULL
                   ? translate_input(translator, options, status)
                   : fail(BAD_INPUT, "cannot load %s: %s", options->saved_model,
                          TF_Message(status));
        delete_translator(translator);
    }
    TF_DeleteStatus(status);
    return code;
}

static int usage(void)
{
    fputs(USAGE, stderr);
    return BAD_INPUT;
}

int main(int argc, char *argv[])
{
    struct options options = {
        .lines_per_call = isatty(STDIN_FILENO) ? 1 : LINES_PER_CALL,
        .operations_folder = OPERATIONS_FOLDER,
    };
    for (int option; (option = getopt(argc, argv, "sn:t:h")) != -1;) {
        char *end;
        long number;
        switch (option) {
        case 's':
            options.with_scores = true;
            break;
        case 'n':
            number = strtol(optarg, &end, 10);
            if (end == optarg || *end != '\0' || number < 1 ||
                number > MOST_LINES)
                return fail(BAD_INPUT,
                            "-n must be a whole number from 1 to %d; received: "
                            "%s",
                            MOST_LINES, optarg);
            options.lines_per_call = (size_t)number;
            break;
        case 't':
            options.operations_folder = optarg;
            break;
        case 'h':
            fputs(USAGE, stdout);
            return 0;
        default:
            return usage();
        }
    }
    if (argc - optind != 1)
        return usage();
    options.saved_model = argv[optind];
    return run(&options);
}
