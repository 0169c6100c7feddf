/* Reads tokenizer.bin and tokenizer.llama2c.bin as engines in C do, from the layout of the records alone.

       reader FILE NUMBERS VOCAB_SIZE MODE <pieces >ids

   FILE:    u32 x NUMBERS: the first is the length of the longest token (of 3 in tokenizer.bin, of 1 in
            tokenizer.llama2c.bin); VOCAB_SIZE times f32 score, u32 length, bytes; what follows is not looked at
   pieces:  u32 length, bytes; and so on; already cut by the tokenizer's pattern
   ids:     u32 count, u32 x count; for each piece

   MODE: greedy-bytes       from single bytes, join the neighbours whose joint token scores best, until no two have one
         greedy-characters  the same from characters, or from the bytes of a character that is no token
         viterbi            the cut with the best sum of scores; a character that no token covers is spelt in bytes
         tokens             read no pieces; write u32 length, bytes and f32 score of every token

   VOCAB_SIZE, MODE and the pattern must be known from elsewhere. The records name no kinds either:
     - The score -1e6 is taken for no rank, be it of a byte, a control or an unused id. `viterbi` uses such tokens to
       spell bytes only. The greedy modes, like the engines, would join text into a control's name if all of that name
       but its end were a text token.
     - Of tokens with equal bytes the best score counts, then the last: byte fallbacks precede the characters that are
       tokens, and where neither has a rank only this order tells the two apart.
     - A token that continues a word looks like one that begins a word, so WordPiece cannot be encoded.
   Damage that leaves every length possible is not noticed; for any other the exit code is 2, with a message. */

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define NO_RANK -1e6f
#define UNKNOWN_PENALTY 10.0f /* what a character that no token covers costs below the least score */
#define MOST (1u << 24)       /* tokens of a vocabulary, bytes of a piece */

struct token {
    const uint8_t *bytes;
    uint32_t length;
    float score;
};

static struct {
    struct token *tokens;
    uint32_t size, longest;
    uint32_t *slots, mask;   /* open addressing: the ids, by the hash of their bytes */
    uint32_t fallbacks[256]; /* what spells a byte of a character that no token covers */
    float unknown;           /* score of such a character */
} vocabulary;

_Noreturn static void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    exit(2);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count + !count, size);
    if (!memory) fail("no memory for %zu times %zu bytes", count, size);
    return memory;
}

static uint32_t number_at(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void put_number(uint32_t number) {
    for (int shift = 0; shift < 32; shift += 8) putchar((int)(number >> shift & 0xFF));
}

static uint8_t *read_whole(const char *name, size_t *size) {
    FILE *file = fopen(name, "rb");
    if (!file) fail("%s: cannot be opened", name);
    uint8_t *data = NULL;
    size_t room = 0;
    for (*size = 0; *size == room; *size += fread(data + *size, 1, room - *size, file)) {
        room = 2 * room + 4096;
        if (!(data = realloc(data, room))) fail("%s: no memory for %zu bytes", name, room);
    }
    if (ferror(file)) fail("%s: cannot be read", name);
    fclose(file);
    return data;
}

/* The slot that holds the token with these bytes, or the empty one where it belongs. */
static uint32_t *slot_of(const uint8_t *bytes, uint32_t length) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (uint32_t i = 0; i < length; i++) hash = (hash ^ bytes[i]) * 16777619u;
    for (;; hash++) {
        uint32_t *slot = &vocabulary.slots[hash & vocabulary.mask];
        if (*slot == NONE) return slot;
        const struct token *token = &vocabulary.tokens[*slot];
        if (token->length == length && !memcmp(token->bytes, bytes, length)) return slot;
    }
}

static uint32_t find(const uint8_t *bytes, uint32_t length) {
    return length > vocabulary.longest ? NONE : *slot_of(bytes, length);
}

static float score_of(uint32_t id) { return vocabulary.tokens[id].score; }

static void read_tokens(const char *name, uint32_t numbers, uint32_t vocab_size) {
    size_t size, place = 4 * (size_t)numbers;
    const uint8_t *data = read_whole(name, &size);
    if (size < place) fail("%s: %zu bytes, cut inside %u numbers", name, size, numbers);
    vocabulary.longest = number_at(data);
    vocabulary.tokens = allocate(vocabulary.size = vocab_size, sizeof *vocabulary.tokens);
    for (uint32_t id = 0; id < vocab_size; id++) {
        if (size - place < 8) fail("%s: cut before token %u", name, id);
        uint32_t bits = number_at(data + place), length = number_at(data + place + 4);
        place += 8;
        if (length > vocabulary.longest) fail("%s: token %u has %u bytes, the longest fewer", name, id, length);
        if (length > size - place) fail("%s: cut inside token %u of %u bytes", name, id, length);
        vocabulary.tokens[id] = (struct token){data + place, length, 0};
        memcpy(&vocabulary.tokens[id].score, &bits, sizeof bits);
        place += length;
    }
}

static void index_tokens(void) {
    uint32_t room = 2;
    while (room / 2 < vocabulary.size) room *= 2;
    vocabulary.mask = room - 1;
    vocabulary.slots = allocate(room, sizeof *vocabulary.slots);
    memset(vocabulary.slots, 0xFF, room * sizeof *vocabulary.slots);
    memset(vocabulary.fallbacks, 0xFF, sizeof vocabulary.fallbacks);
    float least = 0;
    for (uint32_t id = 0; id < vocabulary.size; id++) {
        const struct token *token = &vocabulary.tokens[id];
        uint32_t *slot = slot_of(token->bytes, token->length);
        if (*slot == NONE || token->score >= score_of(*slot)) *slot = id;
        if (token->score > NO_RANK && token->score < least) least = token->score;
        if (token->length == 1 && !(token->score > NO_RANK) && vocabulary.fallbacks[*token->bytes] == NONE)
            vocabulary.fallbacks[*token->bytes] = id;
    }
    vocabulary.unknown = least - UNKNOWN_PENALTY;
}

/* The number of bytes of the character that begins here; 1 inside of one. */
static uint32_t character_width(const uint8_t *bytes, uint32_t rest) {
    uint32_t width = 1;
    while (*bytes >= 0xC0 && width < rest && (bytes[width] & 0xC0) == 0x80) width++;
    return width;
}

static uint32_t must_have(uint32_t id, uint8_t byte) {
    if (id == NONE) fail("no token for the byte 0x%02X", byte);
    return id;
}

struct part { uint32_t start, joint; }; /* joint: the token that this part and the next one make */

static void join(const uint8_t *piece, const struct part *end, struct part *part) {
    part->joint = end - part < 2 ? NONE : find(piece + part->start, part[2].start - part->start);
}

/* Writes the ids of a piece into `ids`, which has room for its length, and returns their count. */
static uint32_t greedy(const uint8_t *piece, uint32_t length, bool characters, uint32_t *ids) {
    struct part *parts = allocate((size_t)length + 1, sizeof *parts), *end = parts;
    for (uint32_t place = 0, width; place < length; place += width) {
        width = characters ? character_width(piece + place, length - place) : 1;
        if (find(piece + place, width) == NONE) width = 1;
        *end++ = (struct part){place, NONE};
    }
    *end = (struct part){length, NONE};
    for (struct part *part = parts; part < end; part++) join(piece, end, part);
    for (;;) {
        struct part *best = NULL;
        for (struct part *part = parts; part < end; part++)
            if (part->joint != NONE && (!best || score_of(part->joint) > score_of(best->joint))) best = part;
        if (!best) break;
        memmove(best + 1, best + 2, (size_t)(end - best - 1) * sizeof *best);
        end--;
        join(piece, end, best);
        if (best > parts) join(piece, end, best - 1);
    }
    uint32_t count = (uint32_t)(end - parts);
    for (struct part *part = parts; part < end; part++)
        *ids++ = must_have(find(piece + part->start, part[1].start - part->start), piece[part->start]);
    free(parts);
    return count;
}

struct reached {
    float sum;     /* the best sum of scores of what lies before, rounded at each step */
    uint32_t from; /* where its last token starts; NONE where nothing came by */
    uint32_t id;   /* NONE for a character that no token covers */
};

static void reach(struct reached *point, float sum, uint32_t from, uint32_t id) {
    if (point->from == NONE || sum > point->sum) *point = (struct reached){sum, from, id};
}

/* As `greedy`. Of equal sums the one counts that reaches a point from furthest left. */
static uint32_t viterbi(const uint8_t *piece, uint32_t length, uint32_t *ids) {
    struct reached *points = allocate((size_t)length + 1, sizeof *points);
    for (uint32_t place = 1; place <= length; place++) points[place].from = NONE;
    for (uint32_t start = 0, width; start < length; start += width) {
        uint32_t rest = length - start, limit = vocabulary.longest < rest ? vocabulary.longest : rest;
        float sum = points[start].sum;
        bool covered = false;
        width = character_width(piece + start, rest);
        for (uint32_t size = 1; size <= limit; size++) {
            uint32_t id = find(piece + start, size);
            if (id == NONE || !(score_of(id) > NO_RANK)) continue;
            reach(&points[start + size], sum + score_of(id), start, id);
            covered = covered || size == width;
        }
        if (!covered) reach(&points[start + width], sum + vocabulary.unknown, start, NONE);
    }
    uint32_t *first = ids + length; /* filled from the right */
    for (uint32_t stop = length; stop; stop = points[stop].from) {
        if (points[stop].id != NONE) *--first = points[stop].id;
        for (uint32_t place = stop; points[stop].id == NONE && place-- > points[stop].from;)
            *--first = must_have(vocabulary.fallbacks[piece[place]], piece[place]);
    }
    uint32_t count = (uint32_t)(ids + length - first);
    memmove(ids, first, count * sizeof *ids);
    free(points);
    return count;
}

static void encode_pieces(const char *mode) {
    bool best_sum = !strcmp(mode, "viterbi"), characters = !strcmp(mode, "greedy-characters");
    if (!best_sum && !characters && strcmp(mode, "greedy-bytes")) fail("unknown mode %s", mode);
    uint8_t header[4];
    for (size_t got; (got = fread(header, 1, 4, stdin));) {
        uint32_t length = number_at(header);
        if (got < 4) fail("stdin: cut inside a length");
        if (length > MOST) fail("stdin: a piece of %u bytes: at most %u", length, MOST);
        uint8_t *piece = allocate(length, 1);
        uint32_t *ids = allocate(length, sizeof *ids);
        if (fread(piece, 1, length, stdin) < length) fail("stdin: cut inside a piece of %u bytes", length);
        uint32_t count = best_sum ? viterbi(piece, length, ids) : greedy(piece, length, characters, ids);
        put_number(count);
        for (uint32_t i = 0; i < count; i++) put_number(ids[i]);
        free(ids);
        free(piece);
    }
}

static void write_tokens(void) {
    for (uint32_t id = 0; id < vocabulary.size; id++) {
        const struct token *token = &vocabulary.tokens[id];
        uint32_t bits;
        memcpy(&bits, &token->score, sizeof bits);
        put_number(token->length);
        fwrite(token->bytes, 1, token->length, stdout);
        put_number(bits);
    }
}

int main(int count, char **values) {
    uint32_t numbers = count == 5 ? (uint32_t)strtoul(values[2], NULL, 10) : 0;
    uint32_t vocab_size = count == 5 ? (uint32_t)strtoul(values[3], NULL, 10) : 0;
    if (!numbers || numbers > 3 || !vocab_size || vocab_size > MOST) fail("expected FILE NUMBERS VOCAB_SIZE MODE");
    read_tokens(values[1], numbers, vocab_size);
    index_tokens();
    if (strcmp(values[4], "tokens")) encode_pieces(values[4]);
    else write_tokens();
    if (fflush(stdout) || ferror(stdout)) fail("stdout: cannot be written");
    return 0;
}
