/* Pictures of a prompt: see pictures.h. */
#include "daemon/jobs/pictures.h"

#include <assert.h>
#include <math.h>
#include "common/siphash.h"

uint32_t tdm_job_picture_id(const uint8_t hash[TDM_PICTURE_HASH_BYTES], uint32_t row)
{
        struct tdm_siphash s;
        uint8_t bytes[TDM_SIPHASH_BYTES];
        uint32_t id;

        static_assert(TDM_PICTURE_HASH_BYTES == TDM_SIPHASH_KEY_BYTES, "the hash is the key");
        tdm_siphash_init(&s, hash);
        tdm_siphash_add(&s, &row, sizeof(row));
        tdm_siphash_end(&s, bytes);
        memcpy(&id, bytes, sizeof(id));
        return id | TDM_PICTURE_ID;
}

static int check_picture(const struct tdm_job_picture *picture, size_t number, uint32_t begin, uint32_t width,
                         uint32_t n_ids, struct tdm_error *err)
{
        if (picture->n_rows < 1 || picture->first < begin || picture->first >= n_ids ||
            picture->n_rows > n_ids - picture->first)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "picture %zu has %u rows from position %u; the prompt has %u positions, and the "
                                     "picture before it ends at %u",
                                     number, picture->n_rows, picture->first, n_ids, begin);
        for (uint64_t i = 0; i < (uint64_t)picture->n_rows * width; i++)
                if (!isfinite(picture->rows[i]))
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "row %u of picture %zu has a number that is none",
                                             (uint32_t)(i / width), number);
        return 0;
}

int tdm_job_pictures_init(struct tdm_job_pictures *ret, const struct tdm_job_picture *pictures, size_t n,
                          uint32_t width, uint32_t *ids, uint32_t n_ids, struct tdm_account *account,
                          struct tdm_error *err)
{
        struct tdm_job_pictures p = { .n = (uint32_t)n, .width = width };
        uint64_t n_rows = 0;
        uint32_t end = 0;
        float *to;
        int r;

        if (n > TDM_MAX_JOB_PICTURES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%zu pictures; at most %u are taken", n,
                                     TDM_MAX_JOB_PICTURES);
        for (size_t i = 0; i < n; i++) {
                r = check_picture(&pictures[i], i, end, width, n_ids, err);
                if (r != 0)
                        return r;
                end = pictures[i].first + pictures[i].n_rows;
                n_rows += pictures[i].n_rows;
        }
        p.charged_bytes = n_rows * width * sizeof(float);
        r = tdm_account_charge(account, TDM_RESOURCE_WAITING_BYTES, p.charged_bytes, err);
        if (r != 0)
                return r;
        p.account = account ? tdm_account_ref(account) : NULL;
        p.items = calloc(n, sizeof(*p.items));
        p.rows = to = malloc(p.charged_bytes);
        if (!p.items || !p.rows) {
                tdm_job_pictures_deinit(&p);
                return tdm_error_set(err, -ENOMEM, "out of memory for the rows of pictures");
        }
        for (uint32_t i = 0; i < p.n; i++) {
                size_t size = (size_t)pictures[i].n_rows * width;

                p.items[i] = pictures[i];
                p.items[i].rows = memcpy(to, pictures[i].rows, size * sizeof(*to));
                to += size;
                for (uint32_t row = 0; row < pictures[i].n_rows; row++)
                        ids[pictures[i].first + row] = tdm_job_picture_id(pictures[i].hash, row);
        }
        *ret = p;
        return 0;
}

void tdm_job_pictures_take(struct tdm_job_pictures *p, struct tdm_job_picture *items, uint32_t n, uint32_t width,
                           float *rows)
{
        p->items = items;
        p->n = n;
        p->width = width;
        p->rows = rows;
}

int tdm_job_pictures_reserve(struct tdm_job_pictures *p, uint64_t n_bytes, struct tdm_account *account,
                             struct tdm_error *err)
{
        int r = tdm_account_charge(account, TDM_RESOURCE_WAITING_BYTES, n_bytes, err);

        if (r != 0)
                return r;
        p->charged_bytes = n_bytes;
        p->account = account ? tdm_account_ref(account) : NULL;
        return 0;
}

void tdm_job_pictures_deinit(struct tdm_job_pictures *p)
{
        tdm_account_release(p->account, TDM_RESOURCE_WAITING_BYTES, p->charged_bytes);
        tdm_account_unref(p->account);
        free(p->items);
        free(p->rows);
        *p = (struct tdm_job_pictures){ 0 };
}

uint32_t tdm_job_pictures_rows(const struct tdm_job_pictures *p)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < p->n; i++)
                n += p->items[i].n_rows;
        return n;
}

const struct tdm_job_picture *tdm_job_pictures_at(const struct tdm_job_pictures *p, uint32_t position)
{
        for (uint32_t i = 0; i < p->n; i++)
                if (position >= p->items[i].first && position - p->items[i].first < p->items[i].n_rows)
                        return &p->items[i];
        return NULL;
}

bool tdm_job_pictures_may_cut(const struct tdm_job_pictures *p, uint32_t position)
{
        const struct tdm_job_picture *picture = tdm_job_pictures_at(p, position);

        return !picture || picture->first == position;
}

uint32_t tdm_job_pictures_fit(const struct tdm_job_pictures *p, uint32_t first, uint32_t n, uint32_t most)
{
        for (uint32_t i = 0; i < p->n; i++) {
                const struct tdm_job_picture *picture = &p->items[i];

                if (picture->first < first || picture->first - first >= n)
                        continue;
                if (most == 0 || picture->n_rows > n - (picture->first - first))
                        return picture->first - first;
                most--;
        }
        return n;
}
