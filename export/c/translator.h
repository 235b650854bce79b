/* A translator from a SavedModel that `export_saved_model` has written.
 *
 * Every function that can fail says so in `status`, as TensorFlow's own do.
 * A translator may be shared by threads.
 */
#ifndef TRANSLATOR_H
#define TRANSLATOR_H

#include <stddef.h>

#include <tensorflow/c/c_api.h>

struct translator;

struct text {
    const char *data; /* UTF-8, may hold zeros */
    size_t size;      /* bytes */
};

struct translations {
    TF_Tensor *texts;
    TF_Tensor *scores;
    size_t hypotheses; /* of each text, best first */
};

/* Loads operations that a SavedModel needs from a library of tensorflow-text,
 * for all translators of the process. */
void load_operations(const char *library, TF_Status *status);

/* Loads a SavedModel; NULL on failure. */
struct translator *new_translator(const char *folder, TF_Status *status);
void delete_translator(struct translator *translator);

/* Translates texts, of any number but none. The result is to be cleared, and
 * is nothing on failure. */
struct translations translate(const struct translator *translator,
                              const struct text *texts, size_t count,
                              TF_Status *status);
void clear_translations(struct translations *translations);

/* The best translation of a text, there until the translations are cleared,
 * and its score, a natural-logarithm probability in nats. */
struct text translation_of(const struct translations *translations,
                           size_t index);
float score_of(const struct translations *translations, size_t index);

#endif
