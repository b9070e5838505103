"""The decoder and its mixers in plain torch, and its transformers classes in `hugging_face`. Imports neither itself."""


def register() -> None:
    """Makes the Auto classes of transformers know model type "tlm". Calling it again changes nothing."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from tlm_repro.models.hugging_face.configuration import TLMConfig
    from tlm_repro.models.hugging_face.decoder import TLMForCausalLM, TLMModel

    AutoConfig.register(TLMConfig.model_type, TLMConfig, exist_ok=True)
    AutoModel.register(TLMConfig, TLMModel, exist_ok=True)
    AutoModelForCausalLM.register(TLMConfig, TLMForCausalLM, exist_ok=True)
