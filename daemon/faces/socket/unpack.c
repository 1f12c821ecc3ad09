/* From a frame to a request. A frame is unpacked with a budget, so that a small one unfolds neither into much memory
 * nor into much work. */
#include "daemon/faces/socket/private.h"

#include "daemon/jobs/job.h"

/* Bounds of unpacking one frame. protobuf-c makes one piece of memory for each message, text, and list of ids. */
#define UNPACK_MAX_BYTES (UINT64_C(16) << 20)
#define UNPACK_MAX_PIECES 47104u
/* Pieces of the longest chat: each message is itself, five texts and its list of calls; each call itself and three
 * texts. */
static_assert(UNPACK_MAX_PIECES >= 7 * TDM_MAX_CHAT_MESSAGES + 4 * TDM_MAX_CHAT_CALLS + TDM_JOB_MAX_TEXTS +
                                           2 * TDM_MAX_JOB_PICTURES + 512,
              "every request that is documented can be unpacked");

struct budget {
        uint64_t left_bytes;
        uint64_t largest_bytes; /* of one piece */
        unsigned left_pieces;
        bool exceeded;
};

static void *budget_alloc(void *data, size_t size)
{
        struct budget *b = data;
        /* The bytes that malloc() adds to a small piece count too. */
        uint64_t cost = (uint64_t)size + 32;

        if (size > b->largest_bytes || cost > b->left_bytes || b->left_pieces == 0) {
                b->exceeded = true;
                return NULL;
        }
        b->left_bytes -= cost;
        b->left_pieces--;
        return malloc(size);
}

static void budget_free(void *data, void *p)
{
        free(p);
}

/* The id of a request that is not unpacked, where it is the first field, as encoders write it; else 0. */
static uint32_t first_id(const uint8_t *data, size_t size)
{
        uint64_t id = 0;

        if (size < 2 || data[0] != (1 << 3)) /* field 1, a varint */
                return 0;
        for (size_t i = 1; i < TDM_MIN(size, (size_t)6); i++) {
                id |= (uint64_t)(data[i] & 0x7f) << (7 * (i - 1));
                if (data[i] < 0x80)
                        return id <= UINT32_MAX ? (uint32_t)id : 0;
        }
        return 0;
}

static void refuse_frame(struct client *c, uint32_t id, bool exceeded)
{
        char message[160];

        if (!exceeded) {
                face_protocol_error(c, "a frame is not a request of the protocol");
                return;
        }
        snprintf(message, sizeof(message),
                 "the request has too many parts: more than %u messages, calls and texts, or more than %u token ids",
                 UNPACK_MAX_PIECES, TDM_CTX_MAX);
        if (id == 0)
                face_protocol_error(c, message);
        else if (request_may_open(c, id))
                face_send_error(c, id, TDM_E_TOO_LONG, message);
}

void face_handle(struct client *c, const uint8_t *data, size_t size, int *fds, unsigned n_fds)
{
        /* No text is longer than its frame, and no list of ids longer than a context. */
        struct budget budget = { .left_bytes = UNPACK_MAX_BYTES,
                                 .largest_bytes = TDM_MAX(size + 1, TDM_CTX_MAX * sizeof(uint32_t)),
                                 .left_pieces = UNPACK_MAX_PIECES };
        ProtobufCAllocator allocator = { budget_alloc, budget_free, &budget };
        Tandem__Request *request = tandem__request__unpack(&allocator, size, data);
        struct tdm_error err = { 0 };
        int r;

        c->n_asked++;
        if (!request) {
                refuse_frame(c, first_id(data, size), budget.exceeded);
                return;
        }
        if (request->id == 0)
                face_protocol_error(c, "a request's id must not be 0");
        else if (request_may_open(c, request->id)) {
                r = request_dispatch(c, request, fds, n_fds, &err);
                if (r != 0)
                        face_send_error(c, request->id, r < 0 ? TDM_E_INTERNAL : r,
                                        err.message[0] ? err.message : "the request failed");
        }
        tandem__request__free_unpacked(request, &allocator);
}
