"""The decoder, its mixers and their cost. Importing this package loads neither torch nor transformers."""


def register() -> None:
    """Makes the Auto classes of transformers know model type "tlm". Calling it again changes nothing."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from tlm_repro.models.configuration import TLMConfig
    from tlm_repro.models.decoder import TLMForCausalLM, TLMModel

    AutoConfig.register(TLMConfig.model_type, TLMConfig, exist_ok=True)
    AutoModel.register(TLMConfig, TLMModel, exist_ok=True)
    AutoModelForCausalLM.register(TLMConfig, TLMForCausalLM, exist_ok=True)
