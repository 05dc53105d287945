"""Upload of an exported folder to the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id

from diffeq_former.errors import UserError


def check_name(name: str) -> None:
    """Raise UserError unless this can be the name of a repository on the hub."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"the hub has no names like {name!r}: {error}") from error


def push(folder: Path, name: str) -> str:
    """Upload a folder to a repository of the hub, which is created if there is none.

    The token is that of `hf auth login`, or of the variable HF_TOKEN.

    Args:
      folder: The folder; it stays as it is.
      name: The repository, such as user/model.

    Returns:
      The address of the commit.

    Raises:
      UserError: If there is no connection or no token, or the hub refuses the upload.
    """
    api = HfApi()
    try:
        name = api.create_repo(name, exist_ok=True).repo_id
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Export of diffeq_former"
        )
    except (HTTPError, OSError, ValueError) as error:  # a missing token is an OSError
        raise UserError(
            f"{folder} is complete but was not uploaded to {name} ({_reason(error)}):"
            f" log in with `hf auth login`, then run `hf upload {name} {folder}`"
        ) from error
    return commit.commit_url


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
