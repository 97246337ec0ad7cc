// What Swift's importer does with include/module.modulemap: compiled with clang -fmodules.
@import CRie;

_Static_assert(RIE_OK == 0 && RIE_ERR_CANCELLED < 0, "constants come through the module");

rie_status first_token(const rie_model *model, rie_token *token) {
    rie_session *session = 0;
    rie_status status = rie_session_new(model, 0, &session, 0);
    if (status == RIE_OK) {
        status = rie_decode_step(session, 0, token, 0);
    }
    rie_free(session);
    return status;
}
