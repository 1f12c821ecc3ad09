/* The pictures of a job's prompt: where they stand in it, and the rows that a vision tower made of them.
 *
 * Each row has an id in the prompt that is no token's: a part of a hash of the picture. So whatever compares ids, as
 * the prefix cache and its pages on disk do, knows a picture by what it shows. Several rows together hold the whole
 * hash. No client can send such an id, because it is above every vocabulary.
 *
 * A picture's rows see each other on both sides. So a step has a whole picture or none of it, and a beginning that is
 * shared ends outside of pictures. Loop thread only. */
#ifndef TDM_DAEMON_JOBS_PICTURES_H
#define TDM_DAEMON_JOBS_PICTURES_H

#include "daemon/accounts/accounts.h"

#define TDM_MAX_JOB_PICTURES 64u
#define TDM_PICTURE_HASH_BYTES 16u
#define TDM_PICTURE_ID UINT32_C(0x80000000) /* ids of rows have this bit, those of tokens do not */

struct tdm_job_picture {
        uint32_t first, n_rows;               /* positions of the prompt */
        const float *rows;                    /* [n_rows][width] */
        uint8_t hash[TDM_PICTURE_HASH_BYTES]; /* of its pixels, its size, and what made the rows */
};

/* All zero: a prompt without. */
struct tdm_job_pictures {
        struct tdm_job_picture *items; /* [n], from left to right; their rows lie in `rows` */
        uint32_t n, width;
        float *rows;
        struct tdm_account *account;
        uint64_t charged_bytes;
};

/* Copies them, charges the account until deinit, and writes their ids over those at their places. TDM_E_BAD_REQUEST,
 * TDM_E_QUOTA, -ENOMEM. */
int tdm_job_pictures_init(struct tdm_job_pictures *ret, const struct tdm_job_picture *pictures, size_t n,
                          uint32_t width, uint32_t *ids, uint32_t n_ids, struct tdm_account *account,
                          struct tdm_error *err);
/* The same of rows whose ids are written already, without a copy: takes over items and rows. The account was charged
 * with tdm_job_pictures_reserve(). */
void tdm_job_pictures_take(struct tdm_job_pictures *pictures, struct tdm_job_picture *items, uint32_t n, uint32_t width,
                           float *rows);
/* Charges the account for rows that are to come, until deinit. TDM_E_QUOTA. */
int tdm_job_pictures_reserve(struct tdm_job_pictures *pictures, uint64_t n_bytes, struct tdm_account *account,
                             struct tdm_error *err);
void tdm_job_pictures_deinit(struct tdm_job_pictures *pictures);
uint32_t tdm_job_picture_id(const uint8_t hash[TDM_PICTURE_HASH_BYTES], uint32_t row);

/* Of all of them. */
uint32_t tdm_job_pictures_rows(const struct tdm_job_pictures *pictures);
/* The picture that has this position; NULL: a token stands there. */
const struct tdm_job_picture *tdm_job_pictures_at(const struct tdm_job_pictures *pictures, uint32_t position);
/* No picture is on both sides of the border before this position. */
bool tdm_job_pictures_may_cut(const struct tdm_job_pictures *pictures, uint32_t position);
/* Of the n positions from `first` on, a border, how many a step may have: none is cut, and there are at most `most`. */
uint32_t tdm_job_pictures_fit(const struct tdm_job_pictures *pictures, uint32_t first, uint32_t n, uint32_t most);

#endif
