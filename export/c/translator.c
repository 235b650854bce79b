#include "translator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "signature.h"

#define SIGNATURE "serving_default"

struct translator {
    TF_Graph *graph;
    TF_Session *session;
    TF_Output text, translation, score;
};

void load_operations(const char *library, TF_Status *status)
{
    /* The handle alone is deleted: the operations stay. */
    TF_Library *handle = TF_LoadLibrary(library, status);
    if (TF_GetCode(status) == TF_OK)
        TF_DeleteLibraryHandle(handle);
}

/* Finds the output of an operation that is called "name:index". */
static bool find_output(TF_Graph *graph, struct bytes name, TF_Output *output)
{
    char text[512];
    if (name.size >= sizeof text)
        return false;
    memcpy(text, name.data, name.size);
    text[name.size] = '\0';

    char *colon = strrchr(text, ':');
    long index = 0;
    if (colon != NULL) {
        char *end;
        *colon = '\0';
        index = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end != '\0')
            return false;
    }
    output->oper = TF_GraphOperationByName(graph, text);
    output->index = (int)index;
    return output->oper != NULL && index >= 0 &&
           index < TF_OperationNumOutputs(output->oper);
}

/* Finds what the signature takes and gives. */
static void find_outputs(struct translator *translator, struct bytes meta_graph,
                         TF_Status *status)
{
    const struct {
        enum side side;
        const char *key;
        TF_DataType type;
        TF_Output *output;
    } wanted[] = {
        {SIGNATURE_INPUTS, "text", TF_STRING, &translator->text},
        {SIGNATURE_OUTPUTS, "translation", TF_STRING, &translator->translation},
        {SIGNATURE_OUTPUTS, "score", TF_FLOAT, &translator->score},
    };
    char message[128];
    if (!has_signature(meta_graph, SIGNATURE)) {
        TF_SetStatus(status, TF_NOT_FOUND,
                     "the SavedModel has no signature " SIGNATURE);
        return;
    }
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        struct tensor_info info;
        if (!find_tensor(meta_graph, SIGNATURE, wanted[i].side, wanted[i].key,
                         &info) ||
            info.type != (int)wanted[i].type ||
            !find_output(translator->graph, info.name, wanted[i].output)) {
            snprintf(message, sizeof message,
                     "the signature " SIGNATURE
                     " has no %s `%s` of type %s; was the SavedModel written "
                     "by export_saved_model?",
                     wanted[i].side == SIGNATURE_INPUTS ? "input" : "output",
                     wanted[i].key,
                     wanted[i].type == TF_STRING ? "string" : "float32");
            TF_SetStatus(status, TF_NOT_FOUND, message);
            return;
        }
    }
}

struct translator *new_translator(const char *folder, TF_Status *status)
{
    const char *tags[] = {"serve"};
    struct translator *translator = calloc(1, sizeof *translator);
    if (translator == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
        return NULL;
    }
    TF_SessionOptions *options = TF_NewSessionOptions();
    TF_Buffer *meta_graph = TF_NewBuffer();
    translator->graph = TF_NewGraph();
    translator->session =
        TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1,
                                     translator->graph, meta_graph, status);
    if (TF_GetCode(status) == TF_OK)
        find_outputs(translator,
                     (struct bytes){meta_graph->data, meta_graph->length},
                     status);
    TF_DeleteBuffer(meta_graph);
    TF_DeleteSessionOptions(options);
    if (TF_GetCode(status) != TF_OK) {
        delete_translator(translator);
        return NULL;
    }
    return translator;
}

void delete_translator(struct translator *translator)
{
    if (translator == NULL)
        return;
    if (translator->session != NULL) {
        /* Whether closing fails makes no difference any more. */
        TF_Status *status = TF_NewStatus();
        TF_CloseSession(translator->session, status);
        TF_DeleteSession(translator->session, status);
        TF_DeleteStatus(status);
    }
    TF_DeleteGraph(translator->graph);
    free(translator);
}

/* Whether there are as many scores as translations, some for each text. */
static bool set_hypotheses(struct translations *result, size_t count)
{
    size_t texts = (size_t)TF_TensorElementCount(result->texts);
    size_t scores = (size_t)TF_TensorElementCount(result->scores);
    result->hypotheses = texts / count;
    return texts == scores && texts >= count && texts % count == 0;
}

struct translations translate(const struct translator *translator,
                              const struct text *texts, size_t count,
                              TF_Status *status)
{
    struct translations result = {NULL, NULL, 0};
    const int64_t shape[] = {(int64_t)count};
    TF_Tensor *input = TF_AllocateTensor(TF_STRING, shape, 1,
                                         count * sizeof(TF_TString));
    if (input == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
        return result;
    }
    /* Views: the texts outlive the tensor, and it owns nothing to free. */
    TF_TString *strings = TF_TensorData(input);
    for (size_t i = 0; i < count; i++) {
        TF_StringInit(&strings[i]);
        TF_StringAssignView(&strings[i], texts[i].data, texts[i].size);
    }

    const TF_Output outputs[] = {translator->translation, translator->score};
    TF_Tensor *found[] = {NULL, NULL};
    TF_SessionRun(translator->session, NULL, &translator->text, &input, 1,
                  outputs, found, 2, NULL, 0, NULL, status);
    TF_DeleteTensor(input);
    if (TF_GetCode(status) != TF_OK)
        return result;

    result.texts = found[0];
    result.scores = found[1];
    if (!set_hypotheses(&result, count)) {
        TF_SetStatus(status, TF_INTERNAL,
                     "the SavedModel gave another number of translations than "
                     "of texts");
        clear_translations(&result);
    }
    return result;
}

void clear_translations(struct translations *translations)
{
    TF_DeleteTensor(translations->texts);
    TF_DeleteTensor(translations->scores);
    *translations = (struct translations){NULL, NULL, 0};
}

struct text translation_of(const struct translations *translations,
                           size_t index)
{
    const TF_TString *strings = TF_TensorData(translations->texts);
    const TF_TString *best = &strings[index * translations->hypotheses];
    return (struct text){TF_StringGetDataPointer(best),
                         TF_StringGetSize(best)};
}

float score_of(const struct translations *translations, size_t index)
{
    const float *scores = TF_TensorData(translations->scores);
    return scores[index * translations->hypotheses];
}
