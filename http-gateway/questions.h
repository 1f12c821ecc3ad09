/* Requests that are answered by asking the daemon, without a job. */
#ifndef TDM_HTTP_QUESTIONS_H
#define TDM_HTTP_QUESTIONS_H

#include "http-gateway/backend.h"
#include "http-gateway/messages.h"

/* Asks; answered() then answers the exchange. What goes wrong is answered here. model and text are taken over. */
void exchange_ask(struct exchange *x, unsigned what, char *model, char *text, size_t text_size, unsigned flags,
                  void (*answered)(struct exchange *x, struct ask *ask));
/* A list's model; ":latest" may stand behind the name. NULL: not in it. */
const struct tandem_model *find_model(const struct tandem_model_list *list, const char *name);
/* An array of words; empty until the head of the model's file was read. NULL: no memory. */
json_t *model_capabilities(const struct tandem_model *m);
bool model_takes_pictures(const struct tandem_model *m);
void fail_no_model(struct exchange *x, const char *name);

void openai_models(struct exchange *x);
void openai_model(struct exchange *x);
void llama_props(struct exchange *x);
void llama_slots(struct exchange *x);
void question_health(struct exchange *x);
void question_metrics(struct exchange *x);
void question_tokenize(struct exchange *x);
extern const struct reader question_tokenize_reader; /* for tests */

#endif
