#include "cli/session.h"

#include "cli/hub_access.h"

#include <string.h>

const char *const cli_compute_dtypes[] = {"f32", "bf16", NULL};

ag_status cli_session_open(cli_session *s, const cli_model_options *model, const cli_compute_options *compute, int what, ag_err *err)
{
    *s = (cli_session){.compute = model->dtype && strcmp(model->dtype, "bf16") == 0 ? AG_COMPUTE_BF16 : AG_COMPUTE_F32};
    AG_TRY(cli_backend(&s->backend, compute, err));
    ag_status status = cli_find_model(&s->path, model->model, model->revision, &s->arena, err);
    if (!status && what & CLI_TEXT) status = ag_model_text_open(&s->text, s->path, err);
    if (!status && what & CLI_WEIGHTS)
        status = ag_model_open(&s->model, s->path, &(ag_model_options){
            .quantize_nf4 = model->load_in_4bit, .double_quant = true, .n_threads = s->backend.n_threads}, err);
    if (!status && model->adapter)
        status = ag_peft_open_on(&s->peft, model->adapter, s->model, &(ag_peft_options){.allow_pickle = model->allow_unsafe}, err);
    if (status) cli_session_close(s);
    return status;
}

void cli_session_close(cli_session *s)
{
    ag_peft_close(&s->peft);
    ag_model_close(&s->model);
    ag_model_text_close(&s->text);
    ag_arena_free(&s->arena);
}

ag_status cli_session_decoder(ag_decoder **out, const cli_session *s, int64_t max_tokens, int64_t n_logits, int64_t max_positions,
                              ag_err *err)
{
    ag_decoder_options options = {.model = s->model, .backend = &s->backend, .compute = s->compute, .max_tokens = max_tokens,
                                  .max_targets = n_logits, .max_positions = max_positions, .longest_span = max_positions};
    if (s->peft) ag_adapter_use(&options, &s->peft->adapter);
    return ag_decoder_create(out, &options, err);
}
