/* For whom a connection asks: the HTTP gateway may say so, and nobody else. */
#include "daemon/faces/socket/private.h"

static int may_speak_for_others(const struct client *c, struct tdm_error *err)
{
        const struct tdm_face *face = c->face;

        if (face->gateway_state == TDM_FACE_GATEWAY_ASKED)
                return tdm_error_set(err, TDM_E_BUSY, "the gateway's user is being looked up; try again");
        if (face->gateway_state == TDM_FACE_GATEWAY_KNOWN && c->uid == face->gateway)
                return 0;
        return tdm_error_set(err, TDM_E_DENIED, "user %u may not speak for others here; only %s may", (unsigned)c->uid,
                             face->system ? "the HTTP gateway's user (gateway-user in tandem.conf)" :
                                            "the user who runs tandemd");
}

int face_speak_for(struct client *c, const char *label, struct tdm_error *err)
{
        _cleanup_(tdm_account_unrefp) struct tdm_account *account = NULL;
        int r = may_speak_for_others(c, err);

        if (r != 0)
                return r;
        /* What came before would be charged to one account and released from another. */
        if (c->n_asked != 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "whom a connection speaks for is said once, in its first request");
        r = tdm_accounts_get_labelled(c->face->accounts, c->uid, label, &account, err);
        if (r == 0)
                r = tdm_account_charge(account, TDM_RESOURCE_CONNECTIONS, 1, err);
        if (r != 0)
                return r;
        r = tdm_account_charge(account, TDM_RESOURCE_FRAME_BYTES, c->held_bytes, err);
        if (r != 0) {
                tdm_account_release(account, TDM_RESOURCE_CONNECTIONS, 1);
                return r;
        }
        tdm_account_release(c->account, TDM_RESOURCE_FRAME_BYTES, c->held_bytes);
        tdm_account_release(c->account, TDM_RESOURCE_CONNECTIONS, 1);
        tdm_account_unref(c->account);
        c->account = steal_ptr(&account);
        c->identity = c->account->identity;
        return 0;
}
