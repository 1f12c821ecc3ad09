#include "daemon/speculate/guess-file.h"

#include "daemon/models/models.h"

#define COMPARED 12u

struct tdm_guess_file {
        uint32_t *ids; /* where it copies: behind its n those that the job has made */
        size_t n, capacity;
        bool copies;
        struct tdm_lookup *lookup; /* of this job's text; NULL: nothing is read yet */
        uint64_t job_id;
};

void tdm_guess_file_close(struct tdm_guess_file *file)
{
        if (!file)
                return;
        tdm_lookup_destroy(file->lookup);
        free(file->ids);
        free(file);
}

static int guess_file_make_room(struct tdm_guess_file *file, size_t n)
{
        size_t capacity = TDM_MAX(file->capacity, (size_t)4096);
        uint32_t *ids;

        if (n <= file->capacity)
                return 0;
        while (capacity < n)
                capacity *= 2;
        ids = realloc(file->ids, capacity * sizeof(*ids));
        if (!ids)
                return -ENOMEM;
        file->ids = ids;
        file->capacity = capacity;
        return 0;
}

static int read_ids(struct tdm_guess_file *file, FILE *from)
{
        uint32_t id;

        while (fscanf(from, "%u", &id) == 1) {
                if (guess_file_make_room(file, file->n + 1) < 0)
                        return -ENOMEM;
                file->ids[file->n++] = id;
        }
        return 0;
}

int tdm_guess_file_open(struct tdm_guess_file **ret, const char *path)
{
        struct tdm_guess_file *file = calloc(1, sizeof(*file));
        bool copies = strncmp(path, "copy:", 5) == 0;
        _cleanup_(fclosep) FILE *from = fopen(copies ? path + 5 : path, "re");
        int r = !file ? -ENOMEM : !from ? -errno : read_ids(file, from);

        if (r < 0) {
                tdm_guess_file_close(file);
                return r;
        }
        file->copies = copies;
        *ret = file;
        return 0;
}

bool tdm_guess_file_copies(const struct tdm_guess_file *file)
{
        return file->copies;
}

/* The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t mix(uint64_t a, uint64_t b)
{
        a += (b + 1) * UINT64_C(0x9e3779b97f4a7c15);
        a = (a ^ (a >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        a = (a ^ (a >> 27)) * UINT64_C(0x94d049bb133111eb);
        return a ^ (a >> 31);
}

/* How many tokens before `at` are those at the end of the job's text. */
static uint32_t agreement(const struct tdm_guess_file *file, size_t at, const struct tdm_job *job)
{
        uint32_t n = 0;

        while (n < COMPARED && n < at && n < job->generated && file->ids[at - 1 - n] == job->ids[job->n_ids - 1 - n])
                n++;
        return n;
}

uint32_t tdm_guess_file_guess(void *userdata, const struct tdm_job *job, uint32_t most, uint32_t *ret)
{
        const struct tdm_guess_file *file = userdata;
        uint64_t random = mix(job->request.sampling.seed, job->n_ids);
        uint32_t n_vocab = tdm_model_hparams(job->model)->n_vocab, best = 0, n = 0, wrong;
        size_t from = file->n;

        for (size_t at = 1; at < file->n && best < COMPARED; at++) {
                uint32_t agree = agreement(file, at, job);

                if (agree > best) {
                        best = agree;
                        from = at;
                }
        }
        most = (uint32_t)(random % (most + 1));
        while (n < most && from + n < file->n && file->ids[from + n] < n_vocab) {
                ret[n] = file->ids[from + n];
                n++;
        }
        wrong = (uint32_t)(random >> 32) % (n + 1);
        if (wrong < n)
                ret[wrong] = ret[wrong] > 0 ? ret[wrong] - 1 : 1;
        return n;
}

uint32_t tdm_guess_file_look_up(struct tdm_guess_file *file, const struct tdm_job *job, uint32_t most, uint32_t *ret,
                                struct tdm_lookup_match *match)
{
        uint32_t n_vocab = tdm_model_hparams(job->model)->n_vocab, found, n = 0;

        if (file->job_id != job->id) {
                tdm_lookup_destroy(file->lookup);
                file->lookup = NULL;
                file->job_id = job->id;
        }
        if ((!file->lookup && tdm_lookup_new(&file->lookup) < 0) ||
            guess_file_make_room(file, file->n + job->generated) < 0)
                return 0;
        memcpy(file->ids + file->n, job->ids + job->prompt_tokens, job->generated * sizeof(*file->ids));
        found = tdm_lookup_guess(file->lookup, file->ids, (uint32_t)(file->n + job->generated), most, ret, match);
        while (n < found && ret[n] < n_vocab)
                n++;
        return n;
}
