// The order in which an NVIDIA matrix unit keeps f16 in a subgroup's registers, for 16 outputs by 16 columns (A) and 16
// columns by 8 rows (B): thread t has, in this order, of output t / 4 columns c and c + 1, c + 8 and c + 9, then the
// same of output t / 4 + 8, with c = t % 4 * 2; and of row t / 4 the same columns. So a thread loads 16 bytes of
// weights or rows and has what the units want of it, with no shared memory between. Where an implementation keeps
// another order the proof (prove.c) fails, and none of this is used.
//
// Weights of Q4_0, of each panel and chunk of 64 columns: [thread] four words, one for 16 columns each, whose nibbles
// from the lowest on are (output, column) (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8) and the same of column + 1. Of
// Q8_0 [half of the chunk][thread] four words, for 16 columns two each, of output g and g + 8: bytes (c), (c + 8), (c +
// 1), (c + 9). Scales, where they were, of a chunk: [g]: of the first block of g, of its second, the same of g + 8.
//
// Rows: [tile of 8][chunk][half of it][thread] two times c, c + 1, c + 8, c + 9. Flagged, a single row: [chunk][half][t
// % 4] the same.

// Of column `col`, even: the word of a row in its tile; of a flagged row.
uint tdm_fragment_word(uint col, const bool single)
{
        uint word = (col / 2 % 4) * 4 + (col / 16 % 2) * 2 + col / 8 % 2;

        return single ? col / 64 * 32 + col / 32 % 2 * 16 + word : col / 64 * 256 + col / 32 % 2 * 128 + word;
}

// Where row `row` of a matrix's rows begins.
uint64_t tdm_fragment_row(uint64_t acts, uint cols, uint row)
{
        return acts + uint64_t(row / 8) * (cols * 16) + row % 8 * 64;
}
