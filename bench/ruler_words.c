// SPDX-License-Identifier: Apache-2.0
// Words and keys of RULER's tasks.
#include "bench/ruler_draft.h"

// clang-format off
static const char *const adjectives[] = {
    "amber", "ancient", "bitter", "blue", "bold", "brave", "brief", "bright", "broad", "brown", "calm", "careful", "cheap",
    "clean", "clear", "clever", "cold", "common", "cosy", "crisp", "curious", "damp", "dark", "deep", "dry", "dusty",
    "eager", "early", "easy", "empty", "faint", "famous", "fast", "fine", "firm", "flat", "fresh", "frozen", "gentle",
    "golden", "grand", "green", "grey", "happy", "hard", "heavy", "hidden", "hollow", "honest", "hungry", "huge", "icy",
    "idle", "kind", "large", "late", "lazy", "light", "lively", "local", "lonely", "long", "loud", "lucky", "mild",
    "modern", "narrow", "neat", "new", "noble", "noisy", "odd", "old", "pale", "patient", "plain", "polite", "proud",
    "purple", "quick", "quiet", "rare", "rapid", "red", "rich", "ripe", "rough", "round", "rusty", "sharp", "shy",
    "silent", "silver", "simple", "slow", "small", "smooth", "soft", "solid", "steep", "still", "strong", "sunny",
    "sweet", "tall", "tidy", "tiny", "vast", "warm", "weak", "white", "wide", "wild", "wise", "yellow", "young"};
static const char *const nouns[] = {
    "anchor", "apple", "apron", "arrow", "badge", "bakery", "balcony", "banjo", "barrel", "basket", "beach", "bell",
    "bench", "bicycle", "blanket", "boat", "book", "bottle", "bowl", "branch", "brick", "bridge", "broom", "bucket",
    "button", "cabin", "cable", "candle", "canvas", "carpet", "castle", "ceiling", "cellar", "chain", "chair", "chapel",
    "cheese", "cherry", "chimney", "circle", "cliff", "clock", "cloud", "coat", "coin", "compass", "copper", "corner",
    "cotton", "cradle", "crane", "crown", "cup", "curtain", "desert", "desk", "diamond", "door", "drawer", "drum",
    "eagle", "engine", "envelope", "fabric", "factory", "farm", "feather", "fence", "field", "flag", "flute", "forest",
    "fork", "fountain", "garden", "gate", "glacier", "glass", "glove", "grape", "guitar", "hammer", "harbour", "hat",
    "hill", "honey", "horse", "house", "island", "ivory", "jacket", "jar", "jewel", "jungle", "kettle", "key", "kitchen",
    "kite", "ladder", "lake", "lamp", "lantern", "leaf", "lemon", "letter", "library", "lighthouse", "magnet", "map",
    "market", "meadow", "melon", "mirror", "moon", "mountain", "museum", "needle", "nest", "notebook", "oak", "ocean",
    "onion", "orchard", "oven", "paddle", "paint", "palace", "paper", "parcel", "path", "pebble", "pencil", "pepper",
    "piano", "pillow", "pine", "planet", "plate", "pocket", "pond", "poppy", "porch", "potato", "prism", "pump", "puzzle",
    "quilt", "rabbit", "radio", "rain", "ribbon", "ring", "river", "road", "robin", "rocket", "roof", "rope", "rose",
    "saddle", "sail", "sand", "scarf", "school", "seed", "shadow", "shell", "ship", "shovel", "signal", "sleeve", "soap",
    "spoon", "spring", "square", "stable", "stairs", "star", "statue", "stone", "storm", "stove", "street", "sugar",
    "summit", "table", "teapot", "tent", "theatre", "thread", "ticket", "tiger", "tower", "train", "tulip", "tunnel",
    "umbrella", "valley", "vase", "village", "violin", "wagon", "wall", "walnut", "watch", "water", "wheel", "whistle",
    "willow", "window", "winter", "wool", "yard"};
// clang-format on

enum { ADJECTIVES = sizeof adjectives / sizeof *adjectives, NOUNS = sizeof nouns / sizeof *nouns };
enum { PAIRS = ADJECTIVES * NOUNS };

int ruler_n_words(void)
{
    return ADJECTIVES + NOUNS;
}

const char *ruler_word(int index)
{
    return index < ADJECTIVES ? adjectives[index] : nouns[index - ADJECTIVES];
}

// Pairs first, then a pair with a second noun. Each index has another key: STEP has no factor in common with PAIRS.
void ruler_key(uint64_t shuffle, int index, char key[RULER_KEY_BYTES])
{
    enum { STEP = 10007 };
    _Static_assert(PAIRS % STEP != 0, "STEP is a prime number");
    const int pair = (int)((shuffle + (uint64_t)(index % PAIRS) * STEP) % PAIRS), round = index / PAIRS;
    const char *adjective = adjectives[pair / NOUNS], *noun = nouns[pair % NOUNS];
    if (round)
        snprintf(key, RULER_KEY_BYTES, "%s-%s-%s", adjective, noun, nouns[(round - 1) % NOUNS]);
    else
        snprintf(key, RULER_KEY_BYTES, "%s-%s", adjective, noun);
}

void ruler_uuid(struct random_source *r, char uuid[RULER_UUID_BYTES])
{
    const uint64_t high = random_next(r), low = random_next(r);
    snprintf(uuid, RULER_UUID_BYTES, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(high >> 32),
             (unsigned)(high >> 16) & 0xffff, (unsigned)high & 0xfff, ((unsigned)(low >> 48) & 0x3fff) | 0x8000,
             (unsigned long long)low & 0xffffffffffffULL);
}
