/* Reads tokenizer.bin by stages/chatmill/tokenizer/formats/README.md alone, and encodes.

       binary_reader FILE <pieces >ids

   pieces: u32 length, bytes; the text is cut by the file's pattern, or is whole if the file has none
   ids:    u32 count, u32 x count; for each piece

   All checksums are checked before anything else. For a damaged file the exit code is 2, with a line on stderr. */

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define BLOCK 4096

enum { NORMAL, CONTINUATION, FALLBACK, CONTROL, UNUSED, UNKNOWN, ADDED };

struct entry {
    const uint8_t *bytes;
    uint32_t length, id;
    uint8_t kind;
};

struct merge {
    uint32_t left, right, rank;
};

static const char *name;
static uint8_t *data;
static uint64_t offsets, kinds;
static uint32_t vocab_size, num_merges, longest;
static struct entry *entries;   /* sorted by kind and bytes, of equal ones the last id alone */
static size_t num_entries;
static struct merge *merges;    /* sorted by ids */
static uint32_t of_byte[256];   /* the token of each byte */
static float unknown_score;     /* of a character without a token */
static bool is_sentencepiece, has_pattern;
static char algorithm[16];

_Noreturn static void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    fprintf(stderr, "%s: ", name);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    exit(2);
}

static void *allocate(uint64_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (!memory) fail("no memory");
    return memory;
}

static uint32_t u32(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static uint64_t u64(const uint8_t *bytes) { return u32(bytes) | (uint64_t)u32(bytes + 4) << 32; }

/* BLAKE2b, RFC 7693, without a key. */

static const uint64_t IV[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                               0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
static const uint8_t ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static uint64_t turn(uint64_t x, int by) { return x >> by | x << (64 - by); }

static void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x, v[d] = turn(v[d] ^ v[a], 32);
    v[c] += v[d], v[b] = turn(v[b] ^ v[c], 24);
    v[a] += v[b] + y, v[d] = turn(v[d] ^ v[a], 16);
    v[c] += v[d], v[b] = turn(v[b] ^ v[c], 63);
}

static void check(const uint8_t *bytes, uint64_t count, const uint8_t *expected, size_t digest, const char *what) {
    uint64_t h[8], done = 0;
    memcpy(h, IV, sizeof h);
    h[0] ^= 0x01010000 ^ digest;
    do {
        uint8_t block[128] = {0};
        uint64_t v[16], m[16], size = count - done < 128 ? count - done : 128;
        memcpy(block, bytes + done, size);
        done += size;
        for (int i = 0; i < 16; i++) m[i] = u64(block + 8 * i), v[i] = i < 8 ? h[i] : IV[i - 8];
        v[12] ^= done;
        if (done == count) v[14] = ~v[14];
        for (int round = 0; round < 12; round++) {
            const uint8_t *s = ORDER[round % 10];
            for (int i = 0; i < 4; i++) mix(v, i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
            for (int i = 0; i < 4; i++)
                mix(v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[s[2 * i + 8]], m[s[2 * i + 9]]);
        }
        for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
    } while (done < count);
    for (size_t i = 0; i < digest; i++)
        if (expected[i] != (uint8_t)(h[i / 8] >> 8 * (i % 8))) fail("damaged: %s", what);
}

/* The index: the values of one object's own keys. */

static const char *after_string(const char *text, const char *end) {
    for (text++; text < end && *text != '"'; text++) text += *text == '\\';
    return text + 1;
}

static const char *value_of(const char *text, const char *end, const char *key) {
    int depth = 0;
    while (text < end) {
        const char *start = text;
        if (*text != '"') {
            depth += (*text == '{' || *text == '[') - (*text == '}' || *text == ']');
            text++;
            continue;
        }
        text = after_string(text, end);
        bool same = (size_t)(text - start) == strlen(key) + 2 && !memcmp(start + 1, key, strlen(key));
        while (text < end && *text == ' ') text++;
        if (text >= end || *text != ':') continue;
        do text++;
        while (text < end && *text == ' ');
        if (depth == 1 && same) return text;
    }
    return NULL;
}

static void read_index(const uint8_t *index, uint32_t length) {
    const char *text = (const char *)index, *end = text + length, *value = value_of(text, end, "algorithm");
    if (!value || *value != '"') fail("its index has no algorithm");
    size_t size = (size_t)(after_string(value, end) - value) - 2;
    if (size >= sizeof algorithm) fail("an unknown algorithm");
    memcpy(algorithm, value + 1, size);
    value = value_of(text, end, "pattern");
    has_pattern = value && *value == '"';
    value = value_of(text, end, "type");
    is_sentencepiece = value && end - value > 15 && !memcmp(value, "\"sentencepiece\"", 15);
    if (value_of(text, end, "steps")) fail("it has steps, which change text");
}

/* Tokens and merges, by search. */

static int by_bytes(const void *first, const void *second) {
    const struct entry *a = first, *b = second;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

static int by_bytes_and_id(const void *first, const void *second) {
    const struct entry *a = first, *b = second;
    int order = by_bytes(a, b);
    return order ? order : (a->id > b->id) - (a->id < b->id);
}

static int by_ids(const void *first, const void *second) {
    const struct merge *a = first, *b = second;
    if (a->left != b->left) return a->left < b->left ? -1 : 1;
    return (a->right > b->right) - (a->right < b->right);
}

static uint32_t find(uint8_t kind, const uint8_t *bytes, uint32_t length) {
    struct entry wanted = {bytes, length, 0, kind}, *found;
    found = bsearch(&wanted, entries, num_entries, sizeof wanted, by_bytes);
    return found ? found->id : NONE;
}

static uint32_t rank_of(uint32_t left, uint32_t right) {
    struct merge wanted = {left, right, 0}, *found;
    found = bsearch(&wanted, merges, num_merges, sizeof wanted, by_ids);
    return found ? found->rank : NONE;
}

static const uint8_t *record_of(uint32_t id) { return data + u32(data + offsets + 4 * (uint64_t)id); }

static float score_of(uint32_t id) {
    uint32_t bits = u32(record_of(id));
    float score;
    memcpy(&score, &bits, sizeof score);
    return score;
}

static void index_tokens(uint64_t place) {
    bool has_fallbacks = false, found = false;
    float least = 0;
    entries = allocate(vocab_size, sizeof *entries);
    for (uint32_t id = 0; id < vocab_size; id++) {
        uint64_t start = u32(data + offsets + 4 * (uint64_t)id), stop = u32(data + offsets + 4 * (uint64_t)id + 4);
        uint8_t kind = data[kinds + id];
        if (start < 12 || start + 8 > stop || stop > offsets || u32(data + start + 4) != stop - start - 8)
            fail("the record of token %u is invalid", id);
        if (kind >= UNKNOWN) fail("token %u has the kind %u, which only external tokenizers have", id, kind);
        entries[id] = (struct entry){data + start + 8, (uint32_t)(stop - start - 8), id, kind};
        has_fallbacks = has_fallbacks || kind == FALLBACK;
        if (kind == NORMAL && (!found || score_of(id) < least)) least = score_of(id), found = true;
    }
    unknown_score = least - 10;
    qsort(entries, vocab_size, sizeof *entries, by_bytes_and_id);
    for (uint32_t i = 0; i < vocab_size; i++)
        if (i + 1 == vocab_size || by_bytes(entries + i, entries + i + 1)) entries[num_entries++] = entries[i];
    for (int byte = 0; byte < 256; byte++)
        of_byte[byte] = find(has_fallbacks ? FALLBACK : NORMAL, &(uint8_t){(uint8_t)byte}, 1);
    merges = allocate(num_merges, sizeof *merges);
    for (uint32_t rank = 0; rank < num_merges; rank++)
        merges[rank] = (struct merge){u32(data + place + 8 * (uint64_t)rank), u32(data + place + 8 * (uint64_t)rank + 4), rank};
    qsort(merges, num_merges, sizeof *merges, by_ids);
}

static void open_file(void) {
    FILE *file = fopen(name, "rb");
    if (!file) fail("cannot be opened");
    fseek(file, 0, SEEK_END);
    uint64_t size = (uint64_t)ftell(file);
    rewind(file);
    data = allocate(size, 1);
    if (size < 12 + 48 || fread(data, 1, size, file) != size) fail("too short");
    fclose(file);
    const uint8_t *footer = data + size - 48;
    if (memcmp(footer, "chatmill", 8) || u32(footer + 8) != 1) fail("no footer of version 1");
    uint64_t index = u64(footer + 12);
    vocab_size = u32(footer + 20), num_merges = u32(footer + 24);
    uint32_t length = u32(footer + 28);
    uint64_t parts = 12 + 4 * ((uint64_t)vocab_size + 1) + vocab_size + 8 * (uint64_t)num_merges;
    if (index > size || parts > index) fail("its parts do not fit");
    uint64_t blocks = (index + BLOCK - 1) / BLOCK;
    if (index + length + 8 * blocks + 48 != size) fail("its parts do not fit");
    check(data + index, size - 16 - index, data + size - 16, 16, "index");
    for (uint64_t block = 0; block < blocks; block++) {
        uint64_t start = block * BLOCK, count = index - start < BLOCK ? index - start : BLOCK;
        check(data + start, count, data + index + length + 8 * block, 8, "block");
    }
    longest = u32(data);
    kinds = index - 8 * (uint64_t)num_merges - vocab_size;
    offsets = kinds - 4 * ((uint64_t)vocab_size + 1);
    read_index(data + index, length);
    index_tokens(index - 8 * (uint64_t)num_merges);
}

/* The algorithms: each writes the ids of a piece, at most one for each byte, and returns their count. */

static uint32_t character(const uint8_t *piece, uint32_t rest) {
    uint32_t length = 1;
    while (length < rest && (piece[length] & 0xC0) == 0x80) length++;
    return length;
}

static uint32_t spell(const uint8_t *bytes, uint32_t length, uint32_t *ids) {
    for (uint32_t i = 0; i < length; i++)
        if ((ids[i] = of_byte[bytes[i]]) == NONE) fail("no token of the byte %u", bytes[i]);
    return length;
}

static uint32_t lookup(const uint8_t *piece, uint32_t length, uint32_t *ids) {
    uint32_t id = find(NORMAL, piece, length);
    if (id == NONE) return spell(piece, length, ids);
    *ids = id;
    return 1;
}

static uint32_t merge(const uint8_t *piece, uint32_t length, uint32_t *ids) {
    uint32_t count = 0;
    if (!is_sentencepiece) count = lookup(piece, length, ids);
    else
        for (uint32_t place = 0, width; place < length; place += width)
            count += lookup(piece + place, width = character(piece + place, length - place), ids + count);
    while (count > 1) {
        uint32_t best = NONE, at = 0;
        for (uint32_t i = 0; i + 1 < count; i++) {
            uint32_t rank = rank_of(ids[i], ids[i + 1]);
            if (rank < best) best = rank, at = i;
        }
        if (best == NONE) break;
        const uint8_t *left = record_of(ids[at]), *right = record_of(ids[at + 1]);
        uint32_t first = u32(left + 4), second = u32(right + 4);
        uint8_t *joint = allocate((uint64_t)first + second, 1);
        memcpy(joint, left + 8, first);
        memcpy(joint + first, right + 8, second);
        if ((ids[at] = find(NORMAL, joint, first + second)) == NONE) fail("merge %u makes no token", best);
        free(joint);
        memmove(ids + at + 1, ids + at + 2, (--count - at - 1) * sizeof *ids);
    }
    return count;
}

static uint32_t wordpiece(const uint8_t *piece, uint32_t length, uint32_t *ids) {
    uint32_t count = 0;
    for (uint32_t place = 0; place < length;) {
        uint32_t size = length - place < longest ? length - place : longest, id = NONE;
        for (; size && id == NONE; size -= id == NONE) id = find(place ? CONTINUATION : NORMAL, piece + place, size);
        if (id == NONE) fail("no token of the byte %u", piece[place]);
        ids[count++] = id;
        place += size;
    }
    return count;
}

struct place {
    bool reached;
    float sum;
    uint32_t from, id; /* id: NONE for a character without a token */
};

static void offer(struct place *place, float sum, uint32_t from, uint32_t id) {
    if (!place->reached || sum > place->sum) *place = (struct place){true, sum, from, id};
}

static uint32_t viterbi(const uint8_t *piece, uint32_t length, uint32_t *ids) {
    struct place *places = allocate(length, sizeof *places);
    for (uint32_t p = 0, width; p < length; p += width) {
        width = character(piece + p, length - p);
        bool covered = false;
        for (uint32_t size = 1; size <= longest && size <= length - p; size++) {
            uint32_t id = find(NORMAL, piece + p, size);
            if (id == NONE) continue;
            offer(places + p + size, places[p].sum + score_of(id), p, id);
            covered = covered || size == width;
        }
        if (!covered) offer(places + p + width, places[p].sum + unknown_score, p, NONE);
    }
    uint32_t count = 0, *reversed = allocate(length, sizeof *reversed);
    for (uint32_t p = length; p; p = places[p].from) reversed[count++] = p;
    uint32_t written = 0;
    while (count) {
        uint32_t p = reversed[--count], from = places[p].from;
        if (places[p].id == NONE) written += spell(piece + from, p - from, ids + written);
        else ids[written++] = places[p].id;
    }
    free(places);
    free(reversed);
    return written;
}

static uint32_t encode(const uint8_t *piece, uint32_t length, uint32_t *ids) {
    if (!length) return 0;
    if (!strcmp(algorithm, "lookup")) return lookup(piece, length, ids);
    if (!strcmp(algorithm, "merge")) return merge(piece, length, ids);
    if (!strcmp(algorithm, "wordpiece")) return wordpiece(piece, length, ids);
    if (!strcmp(algorithm, "viterbi")) return viterbi(piece, length, ids);
    fail("an unknown algorithm");
}

/* Without a pattern, U+2581 is a piece by itself in SentencePiece's. */
static uint32_t encode_text(const uint8_t *text, uint32_t length, uint32_t *ids) {
    if (has_pattern || !is_sentencepiece) return encode(text, length, ids);
    uint32_t count = 0, start = 0;
    for (uint32_t i = 0; i + 3 <= length;) {
        if (memcmp(text + i, "\xE2\x96\x81", 3)) {
            i++;
            continue;
        }
        count += encode(text + start, i - start, ids + count);
        count += encode(text + i, 3, ids + count);
        start = i += 3;
    }
    return count + encode(text + start, length - start, ids + count);
}

int main(int count, char **arguments) {
    name = count == 2 ? arguments[1] : "binary_reader";
    if (count != 2) fail("expected FILE");
    open_file();
    uint8_t header[4];
    for (size_t got; (got = fread(header, 1, 4, stdin));) {
        uint32_t length = u32(header);
        if (got < 4 || length > 1u << 24) fail("stdin has no piece");
        uint8_t *piece = allocate(length, 1);
        uint32_t *ids = allocate(length, sizeof *ids);
        if (fread(piece, 1, length, stdin) < length) fail("stdin is cut");
        uint32_t found = encode_text(piece, length, ids);
        fwrite(&found, 4, 1, stdout);
        fwrite(ids, 4, found, stdout);
        free(piece);
        free(ids);
    }
    return 0;
}
