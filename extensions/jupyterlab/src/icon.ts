// The icon of the extension; its colours follow the theme.

import { LabIcon } from "@jupyterlab/ui-components";
import svgstr from "../style/icons/runs.svg";

export const runsIcon = new LabIcon({ name: "tuning-workbench:runs", svgstr });
