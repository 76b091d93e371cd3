// SPDX-License-Identifier: Apache-2.0
// bf16 weights in 12 bits without loss. Trained weights use few exponents, so the 8 bits of an exponent become a code
// of 4 bits in a table of 16 exponents. Sign and mantissa, 8 bits, stay as they are. Weights with another exponent are
// escapes: a sorted list has their values, and readers put them in place before they use a weight. The escapes of
// normally distributed weights are about one in 20,000.
//
// A table and a list of escapes cover one part of a matrix, such as a panel of the CPU backend. A quad stores four
// words of K of one output, each a pair of bf16, in three words. Bits are numbered from the lowest:
//
//      codes      the code of word i and of its even (odd) value begins at bit BF12_CODE_SHIFT[i] (plus 16)
//      rest[0]    words 0 and 1: word 0 in the bits of BF12_REST, word 1 in the other bits, rotated left by 8
//      rest[1]    words 2 and 3 in the same way
//
// So one byte shuffle of the codes gives the exponents of two words, and one rotation, one shift and one select by
// BF12_EXPONENT complete a word.
#pragma once

#include <stdint.h>

enum {
    BF12_QUAD = 4,         // words of K in a quad
    BF12_QUAD_WORDS = 3,   // words that store them
    BF12_EXPONENTS = 16,   // exponents of a table
    BF12_ESCAPES_IN = 256, // a matrix with more than one escape in this many weights stays bf16
};
#define BF12_EXPONENT 0x7f807f80u // exponent bits of both values of a word
#define BF12_REST     0x807f807fu // sign and mantissa bits

static inline int bf12_code_shift(int word)
{
    return word % 2 * 8 + word / 2 * 4;
}

// A weight whose exponent the table lacks. Lists are sorted by `word`.
struct bf12_escape {
    uint32_t word;  // word of K, counted from the first word of the part
    uint8_t column; // output, counted from the first output of the part
    uint8_t odd;    // 1: the odd value of the word
    uint16_t half;  // the bf16
};

// Chooses the most frequent exponents. count[e] is the number of weights with exponent e. Returns the number of weights
// with other exponents.
uint64_t bf12_choose(const uint32_t count[256], uint8_t exponent[BF12_EXPONENTS]);

// Codes of all exponents in a table; exponents that it lacks have BF12_NO_CODE.
enum { BF12_NO_CODE = 0xff };
void bf12_codes(const uint8_t exponent[BF12_EXPONENTS], uint8_t code[256]);

// Encodes one quad. An escape gets code 0.
static inline void bf12_encode(const uint32_t word[BF12_QUAD], const uint8_t code[256], uint32_t to[BF12_QUAD_WORDS])
{
    to[0] = to[1] = to[2] = 0;
    for (int i = 0; i < BF12_QUAD; i++) {
        const uint8_t even = code[word[i] >> 7 & 0xff], odd = code[word[i] >> 23 & 0xff];
        const uint32_t rest = word[i] & BF12_REST;
        to[0] |= (uint32_t)((even & 15) | (odd & 15) << 16) << bf12_code_shift(i);
        to[1 + i / 2] |= i % 2 ? rest << 8 | rest >> 24 : rest;
    }
}

// Returns word i of a quad without its escapes.
static inline uint32_t bf12_decode(const uint32_t quad[BF12_QUAD_WORDS], const uint8_t exponent[BF12_EXPONENTS], int i)
{
    const uint32_t codes = quad[0] >> bf12_code_shift(i), rest = quad[1 + i / 2];
    const uint32_t exponents = (uint32_t)exponent[codes & 15] << 7 | (uint32_t)exponent[codes >> 16 & 15] << 23;
    return exponents | ((i % 2 ? rest >> 8 | rest << 24 : rest) & BF12_REST);
}
