/* Takes in messages of worker.proto that workers send. Each is checked, then the function that it concerns is called.
 * Nothing is decided here. */
#include "daemon/fleet/private.h"

#include "proto/worker.pb-c.h"

/* The text is shown to people and written to the log, so only plain text is kept. */
static void copy_text(char *to, size_t size, const char *from)
{
        tdm_utf8_copy(to, size, from);
        for (; *to; to++)
                if ((unsigned char)*to < 0x20 || *to == 0x7f)
                        *to = '?';
}

static int receive_hello(struct tdm_fleet_worker *w, const Tandem__Worker__Hello *hello)
{
        if (w->process.phase != TDM_FLEET_PROCESS_STARTING || hello->abi != TDM_WORKER_ABI)
                return -EPROTO;
        copy_text(w->about.device, sizeof(w->about.device), hello->device);
        copy_text(w->about.detail, sizeof(w->about.detail), hello->detail);
        if (w->is_bound) {
                size_t n = strlen(w->about.detail);
                char cpus[64];

                tdm_cpus_format(&w->cpus, cpus, sizeof(cpus));
                snprintf(w->about.detail + n, sizeof(w->about.detail) - n, "%sCPUs %s", n ? ", " : "", cpus);
        }
        copy_text(w->about.numerics_id, sizeof(w->about.numerics_id), hello->numerics_id);
        w->about.memory = (struct tdm_device_memory){ hello->cache_bytes_max, hello->holds_weights };
        w->about.left = (struct tdm_device_needs){ hello->left_features, hello->left_types };
        copy_text(w->about.left_numerics_id, sizeof(w->about.left_numerics_id), hello->left_numerics_id);
        copy_text(w->about.sandbox, sizeof(w->about.sandbox), hello->sandbox);
        if (hello->reason[0] || !w->pinned) /* pinned: it does not know why any more */
                copy_text(w->about.reason, sizeof(w->about.reason), hello->reason);
        tdm_fleet_on_hello(w);
        return 0;
}

static void receive_step_failed(struct tdm_fleet_worker *w, const Tandem__Worker__StepFailed *failed)
{
        struct tdm_error err = { 0 };
        char text[TDM_ERROR_MESSAGE_MAX];

        copy_text(text, sizeof(text), failed->message);
        tdm_error_set(&err, tdm_error_from_name(failed->code), "%s", text);
        tdm_fleet_on_step_failed(w, failed->epoch, failed->model_id, failed->slot, failed->step_id, &err);
}

static int dispatch_message(struct tdm_fleet_worker *w, const Tandem__Worker__FromWorker *message)
{
        char text[TDM_ERROR_MESSAGE_MAX];

        switch (message->kind_case) {
        case TANDEM__WORKER__FROM_WORKER__KIND_HELLO:
                return receive_hello(w, message->hello);
        case TANDEM__WORKER__FROM_WORKER__KIND_NO_DEVICE:
                copy_text(text, sizeof(text), message->no_device->reason);
                tdm_fleet_on_no_device(w, text);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_WEIGHTS_TAKEN:
                tdm_fleet_on_weights_taken(w, message->weights_taken->model_id, message->weights_taken->n_chunks);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_LOADED:
                copy_text(text, sizeof(text), message->loaded->plan);
                tdm_fleet_on_loaded(w, message->loaded->model_id, message->loaded->scratch_bytes, text);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED:
                copy_text(text, sizeof(text), message->load_failed->message);
                tdm_fleet_on_load_failed(w, message->load_failed->model_id,
                                         tdm_error_from_name(message->load_failed->code), text);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_KV_READY:
                tdm_fleet_on_kv_ready(w, message->kv_ready->model_id);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_UNLOADED:
                tdm_fleet_on_unloaded(w, message->unloaded->model_id);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_EPOCH_ACK:
                tdm_fleet_on_epoch_ack(w, message->epoch_ack->epoch);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_RING_FAULT:
                copy_text(text, sizeof(text), message->ring_fault->reason);
                tdm_fleet_on_ring_fault(w, message->ring_fault->epoch,
                                        message->ring_fault->ring == TANDEM__WORKER__RING_NAME__RING_FROM_PEER ||
                                                message->ring_fault->ring == TANDEM__WORKER__RING_NAME__RING_TO_PEER,
                                        text);
                return 0;
        case TANDEM__WORKER__FROM_WORKER__KIND_STEP_FAILED:
                receive_step_failed(w, message->step_failed);
                return 0;
        default:
                return -EPROTO;
        }
}

int tdm_fleet_receive(struct tdm_fleet_worker *w, const uint8_t *data, size_t size)
{
        Tandem__Worker__FromWorker *message = tandem__worker__from_worker__unpack(NULL, size, data);
        int r;

        if (!message)
                return -EPROTO;
        r = dispatch_message(w, message);
        tandem__worker__from_worker__free_unpacked(message, NULL);
        return r;
}
