/* Accounts; the rule and its source are in the header. */
#include "daemon/accounts/accounts.h"

#include <assert.h>

struct tdm_label {
        struct tdm_list node;
        uid_t uid;
        uint64_t identity;
        uint64_t used_at; /* the clock when it was last asked for */
        unsigned n_accounts;
        char suffix[2 + TDM_LABEL_MAX_BYTES + 1]; /* ", TEXT" */
};

struct tdm_accounts {
        struct tdm_resource_limit limits[TDM_N_RESOURCES];
        uint64_t total[TDM_N_RESOURCES];
        struct tdm_list list;
        struct tdm_list labels;
        uint64_t clock;
        uint32_t last_label;          /* the number given last */
        struct tdm_uid_range *ranges; /* [n_ranges], by first, disjoint */
        size_t n_ranges;
};

static const struct {
        const char *name;
        const char *advice; /* what ends such a use */
} resources[TDM_N_RESOURCES] = {
        [TDM_RESOURCE_CONNECTIONS] = { "connections", "close some" },
        [TDM_RESOURCE_CALLERS] = { "callers on the bus", "close some" },
        [TDM_RESOURCE_FRAME_BYTES] = { "bytes of requests and replies on their way",
                                       "read replies, send less at once" },
        [TDM_RESOURCE_WAITING_BYTES] = { "bytes of texts that wait to be tokenized", "try again when some are done" },
        [TDM_RESOURCE_JOBS] = { "jobs", "wait for one to end" },
        [TDM_RESOURCE_CALLS] = { "calls that wait for polkit", "try again when one is answered" },
        [TDM_RESOURCE_MODELS] = { "loaded models", "unload one (tandem unload)" },
        [TDM_RESOURCE_FILES] = { "files being received", "try again when one has come" },
        [TDM_RESOURCE_LOADS] = { "model files being read", "try again when one is done" },
        [TDM_RESOURCE_METADATA_BYTES] = { "bytes of vocabularies", "unload a model (tandem unload)" },
        [TDM_RESOURCE_GRAMMAR_BYTES] = { "bytes of schemas and grammars", "try again when some jobs are done" },
};

const char *tdm_resource_name(enum tdm_resource resource)
{
        return resources[resource].name;
}

int tdm_accounts_new(struct tdm_accounts **ret, const struct tdm_resource_limit *limits)
{
        struct tdm_accounts *accounts = calloc(1, sizeof(*accounts));

        if (!accounts)
                return -ENOMEM;
        for (unsigned r = 0; r < TDM_N_RESOURCES; r++) {
                assert(limits[r].reserve < limits[r].capacity);
                assert(limits[r].share_percent >= 1 && limits[r].share_percent <= 100);
                accounts->limits[r] = limits[r];
        }
        tdm_list_init(&accounts->list);
        tdm_list_init(&accounts->labels);
        *ret = accounts;
        return 0;
}

static const char *text_of(const struct tdm_label *label)
{
        return label->suffix + 2;
}

static void label_free(struct tdm_label *label)
{
        tdm_list_remove(&label->node);
        free(label);
}

void tdm_accounts_destroy(struct tdm_accounts *accounts)
{
        struct tdm_label *label;

        if (!accounts)
                return;
        assert(tdm_list_empty(&accounts->list));
        tdm_list_for_each(label, &accounts->labels, struct tdm_label, node)
                label_free(label);
        free(accounts->ranges);
        free(accounts);
}

void tdm_accounts_destroyp(struct tdm_accounts **accounts)
{
        tdm_accounts_destroy(*accounts);
}

static int by_first(const void *a, const void *b)
{
        const struct tdm_uid_range *x = a, *y = b;

        return x->first < y->first ? -1 : x->first > y->first;
}

int tdm_accounts_set_ranges(struct tdm_accounts *accounts, const struct tdm_uid_range *ranges, size_t n)
{
        struct tdm_uid_range *sorted = calloc(n + 1, sizeof(*sorted));
        size_t n_kept = 0;
        uint64_t end = 0;

        if (!sorted)
                return -ENOMEM;
        if (n > 0)
                memcpy(sorted, ranges, n * sizeof(*ranges));
        qsort(sorted, n, sizeof(*sorted), by_first);
        for (size_t i = 0; i < n; i++) {
                /* A range of root's, or one with root in it, would give an ordinary user root's reserve. */
                if (sorted[i].count == 0 || sorted[i].first == 0 || sorted[i].owner == 0 || sorted[i].first < end)
                        continue;
                end = (uint64_t)sorted[i].first + sorted[i].count;
                sorted[n_kept++] = sorted[i];
        }
        free(accounts->ranges);
        accounts->ranges = sorted;
        accounts->n_ranges = n_kept;
        return 0;
}

uid_t tdm_accounts_owner(const struct tdm_accounts *accounts, uid_t uid)
{
        size_t low = 0, high = accounts->n_ranges;

        while (low < high) {
                size_t middle = low + (high - low) / 2;
                const struct tdm_uid_range *range = &accounts->ranges[middle];

                if (uid < range->first)
                        high = middle;
                else if (uid - range->first >= range->count)
                        low = middle + 1;
                else
                        return range->owner;
        }
        return uid;
}

static struct tdm_account *find_or_add(struct tdm_accounts *accounts, uint64_t identity)
{
        struct tdm_account *account;

        tdm_list_for_each(account, &accounts->list, struct tdm_account, node)
                if (account->identity == identity)
                        return tdm_account_ref(account);
        account = calloc(1, sizeof(*account));
        if (!account)
                return NULL;
        account->accounts = accounts;
        account->identity = identity;
        account->uid = (uid_t)identity;
        account->n_refs = 1;
        tdm_list_init(&account->waiters);
        tdm_list_init(&account->turn_node);
        tdm_list_append(&accounts->list, &account->node);
        return account;
}

struct tdm_account *tdm_accounts_get(struct tdm_accounts *accounts, uid_t uid)
{
        return find_or_add(accounts, tdm_accounts_owner(accounts, uid));
}

static bool is_label(const char *text)
{
        size_t n = strlen(text);

        for (size_t i = 0; i < n; i++)
                if (text[i] <= ' ' || text[i] >= 127)
                        return false;
        return n > 0 && n <= TDM_LABEL_MAX_BYTES;
}

/* Makes room for one more of this uid; the code of a refusal. */
static int forget_oldest_label(struct tdm_accounts *accounts, uid_t uid, struct tdm_error *err)
{
        struct tdm_label *label, *oldest = NULL;
        unsigned n = 0;

        tdm_list_for_each(label, &accounts->labels, struct tdm_label, node) {
                if (label->uid != uid)
                        continue;
                n++;
                if (label->n_accounts == 0 && (!oldest || label->used_at < oldest->used_at))
                        oldest = label;
        }
        if (n < TDM_MAX_LABELS_PER_USER)
                return 0;
        if (!oldest)
                return tdm_error_set(err, TDM_E_QUOTA,
                                     "user %u speaks for %u others already; try again when one has no connection",
                                     (unsigned)uid, n);
        label_free(oldest);
        return 0;
}

static int label_intern(struct tdm_accounts *accounts, uid_t uid, const char *text, struct tdm_label **ret,
                        struct tdm_error *err)
{
        struct tdm_label *label;
        int r;

        tdm_list_for_each(label, &accounts->labels, struct tdm_label, node)
                if (label->uid == uid && strcmp(text_of(label), text) == 0) {
                        *ret = label;
                        return 0;
                }
        r = forget_oldest_label(accounts, uid, err);
        if (r != 0)
                return r;
        if (accounts->last_label == UINT32_MAX)
                return tdm_error_set(err, TDM_E_BUSY, "no more labels can be told apart; restart tandemd");
        label = calloc(1, sizeof(*label));
        if (!label)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        label->uid = uid;
        label->identity = (uint64_t)++accounts->last_label << 32 | uid;
        snprintf(label->suffix, sizeof(label->suffix), ", %s", text);
        tdm_list_append(&accounts->labels, &label->node);
        *ret = label;
        return 0;
}

int tdm_accounts_get_labelled(struct tdm_accounts *accounts, uid_t uid, const char *text, struct tdm_account **ret,
                              struct tdm_error *err)
{
        struct tdm_label *label = NULL;
        struct tdm_account *account;
        int r;

        if (!is_label(text))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "a label has 1 to %u printing ASCII characters and no space", TDM_LABEL_MAX_BYTES);
        r = label_intern(accounts, uid, text, &label, err);
        if (r != 0)
                return r;
        label->used_at = ++accounts->clock;
        account = find_or_add(accounts, label->identity);
        if (!account)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (!account->label) {
                account->label = label;
                label->n_accounts++;
        }
        *ret = account;
        return 0;
}

const char *tdm_account_label_suffix(const struct tdm_account *account)
{
        return account && account->label ? account->label->suffix : "";
}

const char *tdm_account_label(const struct tdm_account *account)
{
        return account && account->label ? text_of(account->label) : "";
}

struct tdm_account *tdm_account_ref(struct tdm_account *account)
{
        account->n_refs++;
        return account;
}

void tdm_account_unref(struct tdm_account *account)
{
        if (!account || --account->n_refs > 0)
                return;
        for (unsigned r = 0; r < TDM_N_RESOURCES; r++)
                assert(account->used[r] == 0);
        assert(tdm_list_empty(&account->waiters));
        tdm_list_remove(&account->turn_node);
        if (account->label)
                account->label->n_accounts--;
        tdm_list_remove(&account->node);
        free(account);
}

void tdm_account_unrefp(struct tdm_account **account)
{
        tdm_account_unref(*account);
}

/* How much all users together may hold while this one asks. */
static uint64_t room_of(const struct tdm_account *account, enum tdm_resource resource)
{
        const struct tdm_resource_limit *limit = &account->accounts->limits[resource];

        return account->identity == 0 ? limit->capacity : limit->capacity - limit->reserve;
}

uint64_t tdm_account_share(const struct tdm_account *account, enum tdm_resource resource)
{
        const struct tdm_resource_limit *limit;
        uint64_t room, others, left;
        unsigned percent;

        if (!account)
                return UINT64_MAX;
        limit = &account->accounts->limits[resource];
        room = room_of(account, resource);
        others = account->accounts->total[resource] - account->used[resource];
        left = room - TDM_MIN(room, others);
        if (account->identity == 0)
                return left;
        /* Divided first, so that no product of bytes overflows. */
        percent = account->label && limit->labelled_percent ? limit->labelled_percent : limit->share_percent;
        return TDM_MAX(left / 100 * percent + left % 100 * percent / 100, limit->floor);
}

uint64_t tdm_account_available(const struct tdm_account *account, enum tdm_resource resource)
{
        uint64_t share = tdm_account_share(account, resource), room, total;

        if (!account)
                return UINT64_MAX;
        room = room_of(account, resource);
        total = account->accounts->total[resource];
        if (total >= room || account->used[resource] >= share)
                return 0;
        return TDM_MIN(share - account->used[resource], room - total);
}

int tdm_account_charge(struct tdm_account *account, enum tdm_resource resource, uint64_t n, struct tdm_error *err)
{
        uint64_t available = tdm_account_available(account, resource);

        if (n > available) {
                const struct tdm_resource_limit *limit = &account->accounts->limits[resource];
                uint64_t total = account->accounts->total[resource];

                account->n_refused[resource]++;
                if (account->used[resource] == 0 && n <= room_of(account, resource) && total > 0)
                        return tdm_error_set(err, TDM_E_BUSY,
                                             "%llu of %llu %s are in use by all users, and %llu more do not fit; try "
                                             "again later",
                                             (unsigned long long)total, (unsigned long long)limit->capacity,
                                             resources[resource].name, (unsigned long long)n);
                return tdm_error_set(err, TDM_E_QUOTA,
                                     "this user (uid %u%s) has %llu %s and may have %llu more now, not %llu; %s",
                                     (unsigned)account->uid, tdm_account_label_suffix(account),
                                     (unsigned long long)account->used[resource], resources[resource].name,
                                     (unsigned long long)available, (unsigned long long)n, resources[resource].advice);
        }
        if (!account)
                return 0;
        account->used[resource] += n;
        account->accounts->total[resource] += n;
        return 0;
}

void tdm_account_release(struct tdm_account *account, enum tdm_resource resource, uint64_t n)
{
        if (!account)
                return;
        assert(account->used[resource] >= n);
        account->used[resource] -= n;
        account->accounts->total[resource] -= n;
}

void tdm_account_move(struct tdm_account *from, struct tdm_account *to, enum tdm_resource resource, uint64_t n)
{
        tdm_account_release(from, resource, n);
        if (!to)
                return;
        to->used[resource] += n;
        to->accounts->total[resource] += n;
}

uint64_t tdm_accounts_total(const struct tdm_accounts *accounts, enum tdm_resource resource)
{
        return accounts->total[resource];
}

struct tdm_list *tdm_accounts_list(struct tdm_accounts *accounts)
{
        return &accounts->list;
}
