#include "cli/session.h"

#include "base/fs.h"

#include <string.h>

const char *const cli_compute_dtypes[] = {"f32", "bf16", NULL};

ag_status cli_check_model(const char *model, ag_err *err)
{
    if (ag_path_is_dir(model) || ag_path_is_file(model)) return AG_OK;
    const char *slash = strchr(model, '/');
    if (slash && model[0] != '.' && model[0] != '/' && model[0] != '~' && !strchr(slash + 1, '/'))
        return ag_fail(err, AG_E_NOT_FOUND, "%s: is no folder or file here. If it is a hub id: this version does not download; fetch "
                       "the model and give its folder", model);
    return ag_fail(err, AG_E_NOT_FOUND, "%s: there is no such folder or file; --model takes a model folder or a .gguf file", model);
}

ag_status cli_session_open(cli_session *s, const cli_model_options *model, const cli_compute_options *compute, int what, ag_err *err)
{
    *s = (cli_session){.compute = model->dtype && strcmp(model->dtype, "bf16") == 0 ? AG_COMPUTE_BF16 : AG_COMPUTE_F32};
    AG_TRY(cli_check_model(model->model, err));
    AG_TRY(cli_backend(&s->backend, compute, err));
    ag_status status = AG_OK;
    if (what & CLI_TEXT) status = ag_model_text_open(&s->text, model->model, err);
    if (!status && what & CLI_WEIGHTS)
        status = ag_model_open(&s->model, model->model, &(ag_model_options){
            .quantize_nf4 = model->load_in_4bit, .double_quant = true, .n_threads = s->backend.n_threads}, err);
    if (!status && model->adapter) status = ag_peft_open(&s->peft, model->adapter, &s->model->d, err);
    if (status) cli_session_close(s);
    return status;
}

void cli_session_close(cli_session *s)
{
    ag_peft_close(&s->peft);
    ag_model_close(&s->model);
    ag_model_text_close(&s->text);
}

ag_status cli_session_decoder(ag_decoder **out, const cli_session *s, int64_t max_tokens, int64_t n_logits, int64_t max_positions,
                              ag_err *err)
{
    return ag_decoder_create(out, &(ag_decoder_options){
        .model = s->model, .backend = &s->backend, .lora = s->peft ? s->peft->adapter.layers : NULL, .compute = s->compute,
        .max_tokens = max_tokens, .max_targets = n_logits, .max_positions = max_positions, .longest_span = max_positions}, err);
}
