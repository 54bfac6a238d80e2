"""The settings: their fields, how each may be written, and what an error says about them."""

from workbench.settings.settings import LOCAL as LOCAL
from workbench.settings.settings import MODES as MODES
from workbench.settings.settings import Group as Group
from workbench.settings.settings import SettingMetadata as SettingMetadata
from workbench.settings.settings import Settings as Settings
from workbench.settings.settings import SettingsError as SettingsError
from workbench.settings.settings import lists_keywords as lists_keywords
from workbench.settings.settings import metadata_of as metadata_of
from workbench.settings.settings import reason as reason
from workbench.settings.settings import recorded_settings as recorded_settings
