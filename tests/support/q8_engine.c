/* Runs a Q8_0 model file and the tokenizer.bin beside it, from the layouts of the two files alone.

       q8_engine MODEL TOKENIZER MAX_TOKENS float|int8 <prompts >answers

   prompts: u32 count, u32 x count ids; and so on
   answers: u32 count, u32 x count ids, u32 length, the bytes of these tokens; for each prompt

   Answers are greedy, and end before the tokenizer's last or first token, after MAX_TOKENS or with the context. With `int8`
   activations are quantized in groups before each product, as engines do for speed; with `float` they are not. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int32_t magic, version, channels, inner, layers, heads, kv_heads, tokens, context, size, tied, group;
} shape;

struct matrix {
    const int8_t *values;
    const float *scales;
};

static const float *attention_norm, *inner_norm, *last_norm, *query_norm, *key_norm;
static struct matrix embedding, head, *query, *key, *value, *output, *gate, *down, *up;
static const uint8_t *place, *end; /* of the model file */
static int quantized;

static void fail(const char *what, const char *name) {
    fprintf(stderr, "%s: %s\n", name, what);
    exit(2);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (!memory) fail("no memory", "q8_engine");
    return memory;
}

static uint8_t *read_whole(const char *name, size_t *size) {
    FILE *file = fopen(name, "rb");
    if (!file) fail("cannot be opened", name);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = allocate(*size, 1);
    if (fread(bytes, 1, *size, file) != *size) fail("cannot be read", name);
    fclose(file);
    return bytes;
}

static const void *take(size_t count, size_t size) {
    const void *taken = place;
    if (count * size > (size_t)(end - place)) fail("is cut", "model");
    place += count * size;
    return taken;
}

static struct matrix *take_matrices(int count, int rows, int columns) {
    struct matrix *all = allocate((size_t)count, sizeof *all);
    for (int i = 0; i < count; i++) {
        all[i].values = take((size_t)rows * columns, 1);
        all[i].scales = take((size_t)rows * columns / shape.group, 4);
    }
    return all;
}

static void load_model(const char *name) {
    size_t size;
    place = read_whole(name, &size);
    end = place + size;
    memcpy(&shape, take(256, 1), sizeof shape);
    if (shape.magic != 0x616a6331 || shape.version != 1) fail("not a Q8_0 model, version 1", name);
    int c = shape.channels, n = shape.layers, all = shape.heads * shape.size, kv = shape.kv_heads * shape.size;
    attention_norm = take((size_t)n * c, 4);
    inner_norm = take((size_t)n * c, 4);
    last_norm = take(c, 4);
    query_norm = take((size_t)n * shape.size, 4);
    key_norm = take((size_t)n * shape.size, 4);
    embedding = *take_matrices(1, shape.tokens, c);
    query = take_matrices(n, all, c);
    key = take_matrices(n, kv, c);
    value = take_matrices(n, kv, c);
    output = take_matrices(n, c, all);
    gate = take_matrices(n, shape.inner, c);
    down = take_matrices(n, c, shape.inner);
    up = take_matrices(n, shape.inner, c);
    head = shape.tied ? embedding : *take_matrices(1, shape.tokens, c);
    if (place != end) fail("has more than its tensors", name);
}

/* Round each group to 127 steps, and back. */
static void round_groups(float *x, int count) {
    for (int start = 0; start < count; start += shape.group) {
        float most = 0;
        for (int i = start; i < start + shape.group; i++) most = fmaxf(most, fabsf(x[i]));
        float scale = most / 127.0f;
        for (int i = start; i < start + shape.group && scale > 0; i++) x[i] = roundf(x[i] / scale) * scale;
    }
}

static void multiply(float *out, const float *x, struct matrix m, int rows, int columns) {
    static float *rounded;
    if (!rounded) rounded = allocate((size_t)shape.inner + shape.channels + shape.heads * shape.size, 4);
    memcpy(rounded, x, (size_t)columns * 4);
    if (quantized) round_groups(rounded, columns);
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < columns; i++) {
            size_t at = (size_t)row * columns + i;
            sum += (double)rounded[i] * (m.values[at] * m.scales[at / shape.group]);
        }
        out[row] = (float)sum;
    }
}

static void normalize(float *out, const float *x, const float *weight, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)x[i] * x[i];
    float factor = (float)(1 / sqrt(sum / count + 1e-6));
    for (int i = 0; i < count; i++) out[i] = weight[i] * (factor * x[i]);
}

/* Normalize one head, and rotate its first half against its second. */
static void place_head(float *x, const float *weight, int position) {
    int half = shape.size / 2;
    normalize(x, x, weight, shape.size);
    for (int i = 0; i < half; i++) {
        double angle = position * pow(1e6, -(double)i / half), a = x[i], b = x[i + half];
        x[i] = (float)(a * cos(angle) - b * sin(angle));
        x[i + half] = (float)(a * sin(angle) + b * cos(angle));
    }
}

static void attend(float *out, const float *q, const float *keys, const float *values, int count, int stride) {
    static double *scores;
    if (!scores) scores = allocate((size_t)shape.context, sizeof *scores);
    double most = -INFINITY, sum = 0;
    for (int t = 0; t < count; t++) {
        scores[t] = 0;
        for (int i = 0; i < shape.size; i++) scores[t] += (double)q[i] * keys[(size_t)t * stride + i];
        scores[t] /= sqrt(shape.size);
        most = fmax(most, scores[t]);
    }
    for (int t = 0; t < count; t++) sum += scores[t] = exp(scores[t] - most);
    for (int i = 0; i < shape.size; i++) {
        double total = 0;
        for (int t = 0; t < count; t++) total += scores[t] * values[(size_t)t * stride + i];
        out[i] = (float)(total / sum);
    }
}

/* The likeliest id after one more token at a position. */
static uint32_t forward(uint32_t id, int position) {
    static float *x, *y, *q, *mixed, *g, *u, *keys, *values, *logits;
    int c = shape.channels, all = shape.heads * shape.size, kv = shape.kv_heads * shape.size;
    if (!x) {
        size_t cache = (size_t)shape.layers * shape.context * kv;
        x = allocate(c, 4), y = allocate(c, 4), q = allocate(all, 4), mixed = allocate(all, 4);
        g = allocate(shape.inner, 4), u = allocate(shape.inner, 4), logits = allocate(shape.tokens, 4);
        keys = allocate(cache, 4), values = allocate(cache, 4);
    }
    for (int i = 0; i < c; i++) {
        size_t at = (size_t)id * c + i;
        x[i] = embedding.values[at] * embedding.scales[at / shape.group];
    }
    for (int l = 0; l < shape.layers; l++) {
        float *k = keys + (size_t)l * shape.context * kv, *v = values + (size_t)l * shape.context * kv;
        normalize(y, x, attention_norm + l * c, c);
        multiply(q, y, query[l], all, c);
        multiply(k + (size_t)position * kv, y, key[l], kv, c);
        multiply(v + (size_t)position * kv, y, value[l], kv, c);
        for (int h = 0; h < shape.kv_heads; h++)
            place_head(k + (size_t)position * kv + h * shape.size, key_norm + l * shape.size, position);
        for (int h = 0; h < shape.heads; h++) {
            int shared = h / (shape.heads / shape.kv_heads) * shape.size;
            place_head(q + h * shape.size, query_norm + l * shape.size, position);
            attend(mixed + h * shape.size, q + h * shape.size, k + shared, v + shared, position + 1, kv);
        }
        multiply(y, mixed, output[l], c, all);
        for (int i = 0; i < c; i++) x[i] += y[i];
        normalize(y, x, inner_norm + l * c, c);
        multiply(g, y, gate[l], shape.inner, c);
        multiply(u, y, up[l], shape.inner, c);
        for (int i = 0; i < shape.inner; i++) g[i] *= u[i] / (1 + expf(-g[i]));
        multiply(y, g, down[l], c, shape.inner);
        for (int i = 0; i < c; i++) x[i] += y[i];
    }
    normalize(x, x, last_norm, c);
    multiply(logits, x, head, shape.tokens, c);
    uint32_t best = 0;
    for (int i = 1; i < shape.tokens; i++) best = logits[i] > logits[best] ? (uint32_t)i : best;
    return best;
}

static uint32_t number_at(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

int main(int count, char **arguments) {
    if (count != 5) fail("expected MODEL TOKENIZER MAX_TOKENS float|int8", arguments[0]);
    load_model(arguments[1]);
    size_t size, at = 12;
    uint8_t *tokenizer = read_whole(arguments[2], &size);
    int most = atoi(arguments[3]);
    quantized = !strcmp(arguments[4], "int8");
    const uint8_t **records = allocate((size_t)shape.tokens, sizeof *records);
    for (int i = 0; i < shape.tokens; i++) {
        if (at + 8 > size || number_at(tokenizer + at + 4) > size - at - 8) fail("is cut", arguments[2]);
        records[i] = tokenizer + at;
        at += 8 + number_at(tokenizer + at + 4);
    }
    uint32_t first = number_at(tokenizer + 4), last = number_at(tokenizer + 8), length;
    while (fread(&length, 4, 1, stdin) == 1) {
        uint32_t *ids = allocate((size_t)length + most, 4), next = 0, answered = 0, bytes = 0;
        if (fread(ids, 4, length, stdin) != length) fail("is cut", "stdin");
        for (uint32_t i = 0; i < length + most && i < (uint32_t)shape.context; i++) {
            if (i >= length) {
                if (next == first || next == last) break;
                ids[i] = next, answered++, bytes += number_at(records[next] + 4);
            }
            if (ids[i] >= (uint32_t)shape.tokens) fail("an id is too large", "stdin");
            next = forward(ids[i], (int)i);
        }
        fwrite(&answered, 4, 1, stdout);
        fwrite(ids + length, 4, answered, stdout);
        fwrite(&bytes, 4, 1, stdout);
        for (uint32_t i = 0; i < answered; i++) {
            const uint8_t *record = records[ids[length + i]];
            fwrite(record + 8, 1, number_at(record + 4), stdout);
        }
        free(ids);
    }
    return 0;
}
